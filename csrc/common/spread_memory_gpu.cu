// Pieces in the memories of GPUs, by the driver's virtual memory management.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>

#include "common/cuda.h"
#include "common/cuda/executor.cuh"

namespace gld {
namespace {

// The driver's functions, looked up where they are needed: the core is linked with the runtime alone, and loads where
// there is no driver.
struct Driver {
  decltype(&cuGetErrorString) error_string;
  decltype(&cuDeviceGetAttribute) attribute;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemCreate) create;
  decltype(&cuMemExportToShareableHandle) share;
  decltype(&cuMemImportFromShareableHandle) receive;
  decltype(&cuMemRelease) give_back;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemUnmap) unmap;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw CudaError(message("libcuda.so.1: ", dlerror()));
    const auto find = [library](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) throw CudaError(message(name, ": expected a driver that has it (of CUDA 11 or later)"));
    };
    find(error_string, "cuGetErrorString");
    find(attribute, "cuDeviceGetAttribute");
    find(granularity, "cuMemGetAllocationGranularity");
    find(create, "cuMemCreate");
    find(share, "cuMemExportToShareableHandle");
    find(receive, "cuMemImportFromShareableHandle");
    find(give_back, "cuMemRelease");
    find(reserve, "cuMemAddressReserve");
    find(release, "cuMemAddressFree");
    find(map, "cuMemMap");
    find(set_access, "cuMemSetAccess");
    find(unmap, "cuMemUnmap");
  }

  void check(CUresult status, const char* call) const {
    if (status == CUDA_SUCCESS) return;
    const char* why = nullptr;
    if (error_string(status, &why) != CUDA_SUCCESS) why = "unknown error";
    throw CudaError(message(call, ": ", why));
  }
  bool has(CUdevice_attribute what, int gpu) const {
    int found = 0;
    check(attribute(&found, what, gpu), "cuDeviceGetAttribute");
    return found != 0;
  }
};

const Driver& driver() {
  static const Driver found;
  return found;
}

constexpr CUmemAllocationHandleType kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// A GPU's number is that of the runtime, which is the driver's, too.
CUmemLocation on_gpu(int gpu) {
  CUmemLocation where{};
  where.type = CU_MEM_LOCATION_TYPE_DEVICE;
  where.id = gpu;
  return where;
}

CUdeviceptr address(char* at) { return static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(at)); }

class GpuMapper : public PieceMapper {
 public:
  explicit GpuMapper(int reader) : reader_(reader) {
    // Makes the context that pieces are mapped in.
    on_device(reader_, [] { check_cuda(cudaFree(nullptr), "cudaFree"); });
  }

  void check(const std::vector<int>& places) const override {
    for (const int gpu : places) {
      if (!driver().has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, gpu))
        throw InvalidArgument(message("device_group_list: GPU ", gpu, " cannot map memory at chosen addresses"));
      if (!cuda_can_access_peer(reader_, gpu))
        throw InvalidArgument(message("device_group_list: GPU ", reader_, " cannot read the memory of GPU ", gpu));
    }
  }

  size_t granularity(const std::vector<int>& places) const override {
    size_t most = 1;
    for (const int gpu : places) {
      const CUmemAllocationProp properties = properties_on(gpu);
      size_t here = 0;
      driver().check(driver().granularity(&here, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                     "cuMemGetAllocationGranularity");
      most = std::max(most, here);
    }
    return most;
  }

  uint64_t take(int place, size_t num_bytes) const override {
    const CUmemAllocationProp properties = properties_on(place);
    CUmemGenericAllocationHandle piece = 0;
    const CUresult status = driver().create(&piece, num_bytes, &properties, 0);
    if (status == CUDA_ERROR_OUT_OF_MEMORY)
      throw CudaError(message("GPU ", place, " has no room for ", num_bytes, " bytes"));
    driver().check(status, "cuMemCreate");
    return piece;
  }

  int share(uint64_t piece) const override {
    int descriptor = -1;
    driver().check(driver().share(&descriptor, piece, kDescriptor, 0), "cuMemExportToShareableHandle");
    return descriptor;
  }

  uint64_t receive(int descriptor) const override {
    CUmemGenericAllocationHandle piece = 0;
    void* handle = reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor));  // how the driver takes it
    driver().check(driver().receive(&piece, handle, kDescriptor), "cuMemImportFromShareableHandle");
    return piece;
  }

  // Nobody hears of what fails at exit, where the driver may be gone already.
  void give_back(uint64_t piece) const noexcept override { (void)driver().give_back(piece); }

  char* reserve(size_t num_bytes) const override {
    CUdeviceptr begin = 0;
    driver().check(driver().reserve(&begin, num_bytes, 0, 0, 0), "cuMemAddressReserve");
    return reinterpret_cast<char*>(static_cast<uintptr_t>(begin));
  }

  void map(char* at, size_t num_bytes, uint64_t piece) const override {
    driver().check(driver().map(address(at), num_bytes, 0, piece, 0), "cuMemMap");
    CUmemAccessDesc access{};
    access.location = on_gpu(reader_);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const CUresult status = driver().set_access(address(at), num_bytes, &access, 1);
    if (status == CUDA_SUCCESS) return;
    unmap(at, num_bytes);
    driver().check(status, "cuMemSetAccess");
  }

  void unmap(char* at, size_t num_bytes) const noexcept override { (void)driver().unmap(address(at), num_bytes); }
  void release(char* at, size_t num_bytes) const noexcept override { (void)driver().release(address(at), num_bytes); }

  bool wait() const noexcept override {
    try {
      on_device(reader_, [] { check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); });
      return true;
    } catch (const CudaError&) {
      return false;
    }
  }

 private:
  static CUmemAllocationProp properties_on(int gpu) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = on_gpu(gpu);
    // Other processes can map it then; where the system has no such descriptors it is this process's alone.
    if (driver().has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, gpu))
      properties.requestedHandleTypes = kDescriptor;
    return properties;
  }

  int reader_;
};

}  // namespace

std::unique_ptr<PieceMapper> make_gpu_mapper(int reader) { return std::make_unique<GpuMapper>(reader); }

}  // namespace gld

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include "common/cuda.h"
#include "common/cuda/executor.cuh"

namespace gld {

bool cuda_is_built() { return true; }

std::string cuda_build_version() {
  return std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // clear it: "no device" is an answer here, not a failure
    return 0;
  }
  return count;
}

bool cuda_can_access_peer(int device, int peer) {
  int has_access = device == peer;
  if (!has_access && cudaDeviceCanAccessPeer(&has_access, device, peer) != cudaSuccess) cudaGetLastError();
  return has_access != 0;
}

namespace {

// Access lasts as long as the process; torch may have opened it before.
void open_peer(int device, int peer) {
  const DeviceScope scope(device);
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  if (status != cudaErrorPeerAccessAlreadyEnabled) return check_cuda(status, "cudaDeviceEnablePeerAccess");
  cudaGetLastError();
}

bool open_byte(const void* byte, int device) {
  cudaPointerAttributes found;
  if (cudaPointerGetAttributes(&found, byte) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  if (found.type == cudaMemoryTypeHost || found.type == cudaMemoryTypeManaged) return found.devicePointer == byte;
  if (found.type != cudaMemoryTypeDevice || !cuda_can_access_peer(device, found.device)) return false;
  if (found.device != device) open_peer(device, found.device);
  return true;
}

}  // namespace

// By the driver: to ask the runtime is to use the device.
bool uses_device(int device) noexcept {
  using Ask = CUresult (*)(CUdevice, unsigned*, int*);
  static const auto ask = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr : reinterpret_cast<Ask>(dlsym(library, "cuDevicePrimaryCtxGetState"));
  }();
  unsigned flags = 0;
  int is_active = 0;
  return ask == nullptr || ask(device, &flags, &is_active) != CUDA_SUCCESS || is_active != 0;
}

// Pages at one end may be locked for a neighbor's sake, so both ends are looked at. A thread that has used no GPU would
// take memory on the first one of the machine by asking.
bool open_to_gpu(const void* memory, size_t num_bytes, int device) {
  return on_device(device, [&] {
    return open_byte(memory, device) && open_byte(static_cast<const char*>(memory) + num_bytes - 1, device);
  });
}

void pin_host_memory(void* memory, size_t num_bytes, bool read_only, int device) {
  on_device(device, [&] {
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    check_cuda(cudaHostRegister(memory, num_bytes, read_only ? flags | cudaHostRegisterReadOnly : flags),
               "cudaHostRegister");
  });
}

// At exit the driver may be gone already, and threads cannot always be started: the memory stays locked then.
void unpin_host_memory(void* memory, int device) {
  try {
    on_device(device, [&] {
      if (cudaHostUnregister(memory) != cudaSuccess) cudaGetLastError();
    });
  } catch (const CudaError&) {
  }
}

uintptr_t new_stream(int device) {
  return on_device(device, [] {
    cudaStream_t made = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return reinterpret_cast<uintptr_t>(made);
  });
}

}  // namespace gld

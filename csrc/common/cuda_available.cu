#include <cuda_runtime.h>

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

// Pages at one end may be locked for a neighbor's sake, so both ends are looked at. A thread that has used no GPU would
// take memory on the first one of the machine by asking.
bool open_to_gpu(const void* memory, size_t num_bytes, int device) {
  const DeviceScope scope(device);
  return open_byte(memory, device) && open_byte(static_cast<const char*>(memory) + num_bytes - 1, device);
}

void pin_host_memory(void* memory, size_t num_bytes, bool read_only, int device) {
  const DeviceScope scope(device);
  const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  check_cuda(cudaHostRegister(memory, num_bytes, read_only ? flags | cudaHostRegisterReadOnly : flags),
             "cudaHostRegister");
}

// At exit the driver may be gone already.
void unpin_host_memory(void* memory, int device) {
  try {
    const DeviceScope scope(device);
    if (cudaHostUnregister(memory) != cudaSuccess) cudaGetLastError();
  } catch (const CudaError&) {
  }
}

uintptr_t new_stream(int device) {
  const DeviceScope scope(device);
  cudaStream_t made = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return reinterpret_cast<uintptr_t>(made);
}

}  // namespace gld

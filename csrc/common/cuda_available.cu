#include <cuda_runtime.h>

#include "common/cuda.h"

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

bool gpu_can_read(const void* memory, int device) {
  cudaPointerAttributes found;
  if (cudaPointerGetAttributes(&found, memory) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  if (found.type == cudaMemoryTypeHost || found.type == cudaMemoryTypeManaged) return found.devicePointer == memory;
  if (found.type != cudaMemoryTypeDevice) return false;
  int has_access = found.device == device;
  if (!has_access && cudaDeviceCanAccessPeer(&has_access, device, found.device) != cudaSuccess) cudaGetLastError();
  return has_access != 0;
}

}  // namespace gld

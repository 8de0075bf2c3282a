// What this build and this machine know of CUDA.
#pragma once
#include <string>

namespace gld {

// True where the CUDA sources were compiled in.
bool cuda_is_built();
// CUDA version the sources were compiled with, such as "13.0"; empty without CUDA.
std::string cuda_build_version();
// Number of usable devices; 0 without CUDA, without a driver, or without a device.
int cuda_device_count();
// Whether kernels on a device can read this memory: its own, that of a peer it has access to, or pinned host memory.
bool gpu_can_read(const void* memory, int device);

}  // namespace gld

// What this build and this machine know of CUDA.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/spread_memory.h"

namespace gld {

// True where the CUDA sources were compiled in.
bool cuda_is_built();
// CUDA version the sources were compiled with, such as "13.0"; empty without CUDA.
std::string cuda_build_version();
// Number of usable devices; 0 without CUDA, without a driver, or without a device.
int cuda_device_count();
// Whether kernels on a device may be given access to the memory of a peer; a device has access to its own.
bool cuda_can_access_peer(int device, int peer);
// Whether kernels on a device can read this memory: its own, that of a peer it has access to, which is opened, or
// pinned host memory. `num_bytes` is at least 1.
bool open_to_gpu(const void* memory, size_t num_bytes, int device);
// Locks host memory where it lies, for kernels on all devices to read; `read_only` memory cannot be written here
// either. Throws CudaError where the system refuses. Each is undone by one unpin_host_memory(), before the memory goes.
// `device` is one that the process uses: a thread that names none would take memory on the first one of the machine.
void pin_host_memory(void* memory, size_t num_bytes, bool read_only, int device);
void unpin_host_memory(void* memory, int device);
// The handle of a stream that waits for no other, not for the default one either, and lives as long as the process.
uintptr_t new_stream(int device);
// Pieces in the memories of GPUs, for one of them to read. Throws InvalidArgument, about device_group_list, where it
// cannot read the memory of another, and CudaError where the driver refuses.
std::unique_ptr<PieceMapper> make_gpu_mapper(int reader);

}  // namespace gld

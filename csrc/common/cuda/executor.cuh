// Runs host-and-device functors on a stream of the caller, one kernel each, without waiting for any.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <future>
#include <system_error>
#include <type_traits>

#include "common/cuda/group_scan.h"
#include "common/cuda/launch_list.h"
#include "common/cuda_stream.h"
#include "common/error.h"

namespace gld {

inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // cleared: it is told here
  throw CudaError(message(what, ": ", cudaGetErrorString(status)));
}

namespace cuda {

struct DeviceGroup {
  int64_t* memory;  // shared by the group

  template <typename Step>
  GLD_HOST_DEVICE void each(Step step) {
#ifdef __CUDA_ARCH__
    step(static_cast<int>(threadIdx.x));
    __syncthreads();
#else
    (void)step;  // bodies are compiled for the host too; this group is of the device
#endif
  }
};

// Functors as a kernel takes them, by value.
template <typename Body, int kSize>
struct Bodies {
  static_assert(std::is_trivially_copyable_v<Body>);
  alignas(Body) unsigned char bytes[kSize * sizeof(Body)];

  explicit Bodies(const LaunchList<Body>& list) {
    for (size_t i = 0; i < list.size(); ++i) std::memcpy(bytes + i * sizeof(Body), &list[i].body, sizeof(Body));
  }
  GLD_HOST_DEVICE const Body& operator[](int i) const { return reinterpret_cast<const Body*>(bytes)[i]; }
};

// Row y of the grid runs the y-th functor.
template <typename Body, int kSize>
__device__ void each_of(const Bodies<Body, kSize>& bodies) {
  const Body& body = bodies[kSize == 1 ? 0 : static_cast<int>(blockIdx.y)];
  const int64_t count = body.count(), stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) body(i);
}

template <typename Body, int kSize>
__global__ void run_each(const __grid_constant__ Bodies<Body, kSize> bodies) {
  each_of(bodies);
}

// The same of a functor that says for how many groups a multiprocessor is to have room, by the registers of each. Any
// bound at all has the compiler take other numbers of them, so that no other functor has one.
template <typename Body, int kSize>
__global__ void __launch_bounds__(kGroupThreads, Body::kRoomForGroups)
    run_each_in_room(const __grid_constant__ Bodies<Body, kSize> bodies) {
  each_of(bodies);
}

template <typename Body, typename = void>
constexpr bool kSaysRoom = false;
template <typename Body>
constexpr bool kSaysRoom<Body, std::void_t<decltype(Body::kRoomForGroups)>> = true;

template <typename Body, int kSize>
__global__ void run_groups(const __grid_constant__ Bodies<Body, kSize> bodies) {
  __shared__ int64_t memory[kGroupMemory];
  DeviceGroup group{memory};
  const Body& body = bodies[kSize == 1 ? 0 : static_cast<int>(blockIdx.y)];
  const int64_t count = body.num_groups();
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) body(group, i);
}

}  // namespace cuda

// Whether the process uses a device: it has memory there, and what it makes in threads that name none is there.
bool uses_device(int device) noexcept;

// Makes a device the thread's current one for a scope. Where it is that already nothing is set: setting a device takes
// memory on it. So it stays the current one where nobody uses the one before, which is the first of the machine in
// threads that have named none: Python names the device for the program's threads, by torch, which sets that back when
// it is used.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : device_(device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device_) check_cuda(cudaSetDevice(device_), "cudaSetDevice");
  }
  ~DeviceScope() {
    if (before_ != device_ && uses_device(before_)) cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int device_, before_ = 0;
};

// What `work` gives, done with a device as the current one, and nothing left of that in the calling thread, which may
// be the program's: another thread does it where the device is not its current one.
template <typename Work>
auto on_device(int device, const Work& work) {
  int current = 0;
  check_cuda(cudaGetDevice(&current), "cudaGetDevice");
  if (current == device) return work();
  const auto elsewhere = [&] {
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
    return work();
  };
  std::future<decltype(work())> done;
  try {
    done = std::async(std::launch::async, elsewhere);
  } catch (const std::system_error& error) {
    throw CudaError(message("a thread for GPU ", device, ": ", error.what()));
  }
  return done.get();
}

// Bodies say themselves how much work there is, from counters that earlier kernels wrote; the bounds given here decide
// the size of the grid alone. Launches that fail throw CudaError.
class CudaExecutor {
 public:
  explicit CudaExecutor(CudaStream stream)
      : device_(stream.device), stream_(reinterpret_cast<cudaStream_t>(stream.handle)) {}

  // body(i) for i in [0, body.count()), in any order.
  template <typename Body>
  void for_each(int64_t max_count, const Body& body) {
    for_each(LaunchList<Body>{{max_count, body}});
  }
  // The same for each functor of a list, in one launch.
  template <typename Body>
  void for_each(const LaunchList<Body>& list) {
    int64_t most = 0;
    for (const auto& [max_count, body] : list) most = std::max(most, max_count);
    if (most == 0) return;
    const dim3 grid = grid_of((most + kGroupThreads - 1) / kGroupThreads, list.size());
    if (list.size() == 1)
      launch_each(grid, cuda::Bodies<Body, 1>(list));
    else
      launch_each(grid, cuda::Bodies<Body, kMaxTogether>(list));
    check_cuda(cudaGetLastError(), "launch of a kernel");
  }

  // body(group, i) for i in [0, body.num_groups()), in any order (see group_scan.h).
  template <typename Body>
  void for_each_group(int64_t max_groups, const Body& body) {
    for_each_group(LaunchList<Body>{{max_groups, body}});
  }
  template <typename Body>
  void for_each_group(const LaunchList<Body>& list) {
    int64_t most = 0;
    for (const auto& [max_groups, body] : list) most = std::max(most, max_groups);
    if (most == 0) return;
    const dim3 grid = grid_of(most, list.size());
    if (list.size() == 1)
      cuda::run_groups<<<grid, kGroupThreads, 0, stream_>>>(cuda::Bodies<Body, 1>(list));
    else
      cuda::run_groups<<<grid, kGroupThreads, 0, stream_>>>(cuda::Bodies<Body, kMaxTogether>(list));
    check_cuda(cudaGetLastError(), "launch of a kernel");
  }

  void fill(void* memory, int byte, size_t bytes) {
    check_cuda(cudaMemsetAsync(memory, byte, bytes, stream_), "cudaMemsetAsync");
  }

 private:
  // Kernels stride over what the grid does not cover: 16 blocks for each of the 132 multiprocessors of an H100.
  static constexpr int64_t kMaxBlocks = 2112;
  static dim3 grid_of(int64_t wanted, size_t num_bodies) {
    const auto rows = static_cast<unsigned>(num_bodies);
    return {static_cast<unsigned>(std::min(wanted, kMaxBlocks / static_cast<int64_t>(rows))), rows};
  }

  template <typename Body, int kSize>
  void launch_each(dim3 grid, const cuda::Bodies<Body, kSize>& bodies) {
    if constexpr (cuda::kSaysRoom<Body>)
      cuda::run_each_in_room<<<grid, kGroupThreads, 0, stream_>>>(bodies);
    else
      cuda::run_each<<<grid, kGroupThreads, 0, stream_>>>(bodies);
  }

  DeviceScope device_;
  cudaStream_t stream_;
};

}  // namespace gld

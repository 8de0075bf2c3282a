// A stream of the caller, without CUDA's headers: the handle that torch.cuda.Stream.cuda_stream gives, and its device.
#pragma once
#include <cstdint>

namespace gld {

constexpr int kHost = -1;

struct CudaStream {
  int device = 0;       // or kHost: kernels' bodies run on the calling thread
  uint64_t handle = 0;  // 0: the default stream
};

}  // namespace gld

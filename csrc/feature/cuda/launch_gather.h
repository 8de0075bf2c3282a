// The kernels of a gather, launched; cuda_unavailable.cpp refuses in builds without CUDA.
#pragma once
#include "common/cuda_stream.h"
#include "feature/cuda/gather_steps.h"

namespace gld {

// Each returns without waiting for the stream, and throws CudaError where the launch fails. Rows, positions and memory
// are checked by the caller (feature/device_gather.h).

// Copies the rows in words of `word_bytes`: 1, 2, 4, 8 or 16, which divide rows and addresses.
void launch_copy(const WantedRows& wanted, int64_t word_bytes, CudaStream stream);
// Casts rows of so many elements.
void launch_cast(const WantedRows& wanted, int64_t columns, const CastElement& cast, CudaStream stream);

}  // namespace gld

// The kernels of a batch, launched; cuda_unavailable.cpp refuses in builds without CUDA.
#pragma once
#include "common/cuda_stream.h"
#include "sampling/cuda/batch_chain.h"

namespace gld {

// Runs a BatchChain on the stream and returns without waiting for it; all memory must live until it is done. Input and
// shape are checked by the caller (sampling/device_batch.h). Throws CudaError where a launch fails.
void launch_batch(const BatchShape& shape, const BatchLayout& layout, const BatchInput& input, BatchMemory memory,
                  CudaStream stream);

}  // namespace gld

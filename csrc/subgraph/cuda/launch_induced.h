// The kernels that find induced edges, launched; cuda_unavailable.cpp refuses in builds without CUDA.
#pragma once
#include "common/cuda_stream.h"
#include "subgraph/cuda/induced_chain.h"

namespace gld {

// Run the two halves of an InducedChain on the stream and return without waiting; all memory must live until they are
// done. The caller checks what it gives (subgraph/device_induced.h). Throw CudaError where a launch fails.
void launch_induced_count(const InducedShape& shape, const InducedLayout& layout, const InducedInput& input,
                          BatchMemory memory, CudaStream stream);
void launch_induced_write(const InducedShape& shape, const InducedLayout& layout, const InducedInput& input,
                          BatchMemory memory, const std::vector<InducedOutput>& out, CudaStream stream);

}  // namespace gld

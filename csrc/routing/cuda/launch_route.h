// The kernels of routing, launched; cuda_unavailable.cpp refuses in builds without CUDA.
#pragma once
#include "common/cuda_stream.h"
#include "routing/cuda/route_chain.h"

namespace gld {

// Run the chains of route_chain.h on the stream and return without waiting; all memory must live until they are done.
// The caller checks what it gives (routing/device_routing.h). Throw CudaError where a launch fails.
void launch_split(const BookView& book, const Tensor& ids, const Split& out, uint64_t* status, char* scratch,
                  CudaStream stream);
void launch_stitch(const StitchInput& input, const Neighbors& out, StitchStatus* status, char* scratch,
                   CudaStream stream);

}  // namespace gld

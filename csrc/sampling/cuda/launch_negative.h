// The kernels of negative sampling, launched; cuda_unavailable.cpp refuses in builds without CUDA.
#pragma once
#include "common/cuda_stream.h"
#include "sampling/cuda/negative_steps.h"

namespace gld {

// One launch on the stream each, not waited for. The caller checks what it gives (sampling/device_negative.h). Throw
// CudaError where the launch fails.
void launch_negatives(const DrawNegatives& draw, CudaStream stream);
void launch_has_edges(const HasEdges& ask, CudaStream stream);

}  // namespace gld

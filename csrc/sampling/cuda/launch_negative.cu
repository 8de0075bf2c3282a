#include "common/cuda/executor.cuh"
#include "sampling/cuda/launch_negative.h"

namespace gld {

void launch_negatives(const DrawNegatives& draw, CudaStream stream) {
  CudaExecutor(stream).for_each(draw.count(), draw);
}

void launch_has_edges(const HasEdges& ask, CudaStream stream) { CudaExecutor(stream).for_each(ask.count(), ask); }

}  // namespace gld

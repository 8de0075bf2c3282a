#include "common/cuda/executor.cuh"
#include "sampling/cuda/launch_negative.h"

namespace gld {

void launch_negatives(const DrawNegatives& draw, CudaStream stream) {
  CudaExecutor executor(stream);
  run_asking(executor, draw);
}

void launch_has_edges(const HasEdges& ask, CudaStream stream) {
  CudaExecutor executor(stream);
  run_asking(executor, ask);
}

}  // namespace gld

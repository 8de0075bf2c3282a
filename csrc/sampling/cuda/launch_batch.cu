#include "common/cuda/executor.cuh"
#include "sampling/cuda/launch_batch.h"

namespace gld {

void launch_batch(const BatchShape& shape, const BatchLayout& layout, const BatchInput& input, BatchMemory memory,
                  CudaStream stream) {
  CudaExecutor executor(stream);
  BatchChain<CudaExecutor>(shape, layout, input, memory, executor).run();
}

}  // namespace gld

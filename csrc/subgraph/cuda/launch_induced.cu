#include "common/cuda/executor.cuh"
#include "subgraph/cuda/launch_induced.h"

namespace gld {

void launch_induced_count(const InducedShape& shape, const InducedLayout& layout, const InducedInput& input,
                          BatchMemory memory, CudaStream stream) {
  CudaExecutor executor(stream);
  InducedChain<CudaExecutor>(shape, layout, input, memory, executor).count();
}

void launch_induced_write(const InducedShape& shape, const InducedLayout& layout, const InducedInput& input,
                          BatchMemory memory, const std::vector<InducedOutput>& out, CudaStream stream) {
  CudaExecutor executor(stream);
  InducedChain<CudaExecutor>(shape, layout, input, memory, executor).write(out);
}

}  // namespace gld

#include "common/cuda/executor.cuh"
#include "feature/cuda/launch_gather.h"
#include "feature/cuda/row_cache_steps.h"

namespace gld {

void launch_copy(const WantedRows& wanted, int64_t word_bytes, CudaStream stream) {
  CudaExecutor executor(stream);
  run_cache(executor, wanted);
  run_copy(executor, wanted, word_bytes);
}

void launch_cast(const WantedRows& wanted, int64_t columns, const CastElement& cast, CudaStream stream) {
  CudaExecutor executor(stream);
  run_cache(executor, wanted);
  run_cast(executor, wanted, columns, cast);
}

}  // namespace gld

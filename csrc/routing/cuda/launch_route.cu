#include "common/cuda/executor.cuh"
#include "routing/cuda/launch_route.h"

namespace gld {

void launch_split(const BookView& book, const Tensor& ids, const Split& out, uint64_t* status, char* scratch,
                  CudaStream stream) {
  CudaExecutor executor(stream);
  run_split(book, ids, out, status, scratch, executor);
}

void launch_stitch(const StitchInput& input, const Neighbors& out, StitchStatus* status, char* scratch,
                   CudaStream stream) {
  CudaExecutor executor(stream);
  StitchChain<CudaExecutor>(input, out, status, scratch, executor).run();
}

}  // namespace gld

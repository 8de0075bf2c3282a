#include "common/cuda/executor.cuh"
#include "feature/cuda/launch_gather.h"

namespace gld {
namespace {

template <typename Body>
void run(const Body& body, CudaStream stream) {
  CudaExecutor(stream).for_each(body.count(), body);
}

}  // namespace

void launch_copy(const WantedRows& wanted, int64_t word_bytes, CudaStream stream) {
  dispatch_word(word_bytes,
                [&](auto word) { run(CopyWords<decltype(word)>{wanted, wanted.out_bytes / word_bytes}, stream); });
}

void launch_cast(const CastElements& cast, CudaStream stream) { run(cast, stream); }

}  // namespace gld

#include "common/cuda/executor.cuh"
#include "feature/cuda/launch_gather.h"

namespace gld {
namespace {

template <typename Copy>
void run(const WantedRows& wanted, int64_t parts_per_row, const Copy& copy, CudaStream stream) {
  const GatherParts<Copy> gather{wanted, parts_per_row, copy};
  CudaExecutor(stream).for_each(gather.count(), gather);
}

}  // namespace

void launch_copy(const WantedRows& wanted, int64_t word_bytes, CudaStream stream) {
  dispatch_word(word_bytes,
                [&](auto word) { run(wanted, wanted.out_bytes / word_bytes, CopyWord<decltype(word)>{}, stream); });
}

void launch_cast(const WantedRows& wanted, int64_t columns, const CastElement& cast, CudaStream stream) {
  run(wanted, columns, cast, stream);
}

}  // namespace gld

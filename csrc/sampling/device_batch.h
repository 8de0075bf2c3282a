// Mini-batches on a GPU: those that BatchBuilder makes on the host, bit by bit.
//
// A batch is one chain of kernels on a stream of the caller, in memory of the caller, whose size is known before
// anything is sampled; nobody waits for a number in between. What a batch reads from is the GPU's memory, or pinned
// host memory.
#pragma once
#include <cstdint>

#include "common/cuda_stream.h"
#include "sampling/cuda/batch_chain.h"

namespace gld {

// The batches of one shape. Immutable: any number of batches may be launched from it.
class DeviceBatchPlan {
 public:
  // Throws InvalidArgument as lay_out_batch() does.
  explicit DeviceBatchPlan(BatchShape shape);

  const BatchShape& shape() const { return shape_; }
  const BatchLayout& layout() const { return layout_; }

  // Throws InvalidArgument unless the input has the shape of the plan and what its draws need (see check_draw()).
  void check(const BatchInput& input) const;

  // Launches a batch, checked, and returns without waiting for it. What it leaves in memory.result is described by
  // layout(). A seed that is outside the graph shows in its status, and a padded batch that does not fit shows there
  // and in input.failure. Padded batches may be captured in a CUDA graph: replayed, they are those that input.counter
  // then names. Throws CudaError where a launch fails.
  void launch(const BatchInput& input, BatchMemory memory, CudaStream stream) const;

 private:
  BatchShape shape_;
  BatchLayout layout_;
};

}  // namespace gld

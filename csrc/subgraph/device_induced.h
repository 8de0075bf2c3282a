// The edges among the nodes of a batch, found by a GPU: those of induced_edges(), bit by bit.
#pragma once
#include <cstdint>
#include <vector>

#include "common/cuda_stream.h"
#include "subgraph/cuda/induced_chain.h"

namespace gld {

// The search for one batch. Immutable.
class DeviceInducedPlan {
 public:
  // Throws InvalidArgument for types that do not exist.
  explicit DeviceInducedPlan(InducedShape shape);

  const InducedShape& shape() const { return shape_; }
  const InducedLayout& layout() const { return layout_; }

  // Launches the search for all edge types and returns without waiting for it. It leaves, in memory.result, how many
  // edges each node has and each type in all (see layout()); members outside the graph show in its status. Throws
  // InvalidArgument unless the input has the shape of the plan, CudaError where a launch fails.
  void count(const InducedInput& input, BatchMemory memory, CudaStream stream) const;

  // Then, with the same input and memory: launches the writing of the edges, in arrays as long as was counted. Edges
  // are grouped by node in the order of the members, each node's in the order of its row.
  void write(const InducedInput& input, BatchMemory memory, const std::vector<InducedOutput>& out,
             CudaStream stream) const;

 private:
  void check(const InducedInput& input) const;

  InducedShape shape_;
  InducedLayout layout_;
};

}  // namespace gld

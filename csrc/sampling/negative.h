// What negative sampling is made of: candidates, and whether they are edges.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "common/rng.h"
#include "common/tensor.h"
#include "common/thread_pool.h"
#include "graph/csr.h"
#include "sampling/weighted_picks.h"

namespace gld {

// Whether row `rows[i]` of `csr` (a row number, int32 or int64 [n]) holds the neighbor `cols[i]` (a global id): 1 or 0,
// uint8 [n]. Rows and neighbors outside the graph throw UnknownId, offsets of
// a row that are not in order within the edges PartitionFormat.
Tensor has_edges(const Csr& csr, const Tensor& rows, const Tensor& cols, ThreadPool& pool);

// Weights of ids, as of a row that has them all as neighbors (graph/weights.h).
struct IdWeights {
  const double* sums;  // null: all ids are alike
  WeightReader weight_at;
};

// An id below `bound`, a function of (key, position) alone: uniform, or by weight.
GLD_HOST_DEVICE inline int64_t random_id(uint64_t key, int64_t position, int64_t bound, const IdWeights& by) {
  const NodeStream stream(key, position);
  if (by.sums == nullptr) return stream.below(0, bound);
  return pick_by_weight(stream, WeightedRow{by.sums, by.weight_at, 0, bound}, 0);
}

// Ids below `bound`, int64 [n]: the i-th is random_id() of (key, positions[i]). Uniform, or where `weights` ([bound],
// any float dtype, one of them positive) are defined with their `sums` (sum_weights() of one row), id v with a
// probability proportional to weights[v]; an id without weight never comes. `positions` int64 [n].
Tensor random_ids(uint64_t key, const Tensor& positions, int64_t bound, const Tensor& weights, const Tensor& sums);

}  // namespace gld

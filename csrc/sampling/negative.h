// What negative sampling is made of: candidates, and whether they are edges.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "common/rng.h"
#include "common/tensor.h"
#include "common/thread_pool.h"
#include "graph/csr.h"
#include "sampling/pickers.h"

namespace gld {

// Whether row `rows[i]` of `csr` (a row number, int32 or int64 [n]) holds the neighbor `cols[i]` (a global id): 1 or 0,
// uint8 [n]. Rows and neighbors outside the graph throw UnknownId.
Tensor has_edges(const Csr& csr, const Tensor& rows, const Tensor& cols, ThreadPool& pool);

// An id below `bound`, a function of (key, position) alone: uniform, or by the ascending sums of weights `sums`
// [bound].
GLD_HOST_DEVICE inline int64_t random_id(uint64_t key, int64_t position, int64_t bound, const double* sums) {
  const NodeStream stream(key, position);
  return sums == nullptr ? stream.below(0, bound) : weighted_position(sums, bound, stream.bits(0));
}

// Ids below `bound`, int64 [n]: the i-th is random_id() of (key, positions[i]). Uniform, or where `cumulative`
// (float64 [bound], ascending sums of weights, of which the last is positive) is defined, id v with a probability
// proportional to cumulative[v] - cumulative[v - 1]; an id without weight never comes. `positions` int64 [n].
Tensor random_ids(uint64_t key, const Tensor& positions, int64_t bound, const Tensor& cumulative);

}  // namespace gld

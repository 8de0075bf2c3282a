// What negative sampling is made of: candidates, and whether they are edges.
#pragma once
#include <cstdint>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "graph/csr.h"

namespace gld {

// Whether row `rows[i]` of `csr` (a row number, int32 or int64 [n]) holds the neighbor `cols[i]` (a global id): 1 or 0,
// uint8 [n]. Rows and neighbors outside the graph throw UnknownId.
Tensor has_edges(const Csr& csr, const Tensor& rows, const Tensor& cols, ThreadPool& pool);

// Ids below `bound`, int64 [n]: the i-th is a function of (key, positions[i]) alone. Uniform, or where `cumulative`
// (float64 [bound], ascending sums of weights, of which the last is positive) is defined, id v with a probability
// proportional to cumulative[v] - cumulative[v - 1]; an id without weight never comes. `positions` int64 [n].
Tensor random_ids(uint64_t key, const Tensor& positions, int64_t bound, const Tensor& cumulative);

}  // namespace gld

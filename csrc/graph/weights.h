// Edge weights: what is accepted, and the cumulative form that sampling reads.
#pragma once
#include <cstdint>
#include <utility>

#include "common/tensor.h"
#include "common/thread_pool.h"

namespace gld {

// Throws InvalidArgument unless `weights` is undefined or of a float dtype and one-dimensional with `num_edges`
// entries.
void check_weight_type(const Tensor& weights, int64_t num_edges);

// The same, and every weight is finite and at least 0.
void check_weights(const Tensor& weights, int64_t num_edges);

// (weight_sums, positive_counts) of canonical weights [E], throwing as check_weights() does, and where a row sums to
// infinity.
//
// weight_sums float64 [E]: within each row, the sum of the weights up to and with each edge, added in the row's order.
// An edge is of positive weight if its sum lies above the one before: an edge of weight 0, or one too small beside the
// others of its row to change their sum, is never drawn by weight.
// positive_counts int32 [E]: within each row, the number of edges of positive weight up to and with each edge;
// undefined where all edges are.
std::pair<Tensor, Tensor> sum_weights(const Tensor& indptr, const Tensor& weights, ThreadPool& pool);

}  // namespace gld

// Compressed sparse rows in canonical order.
//
// A row holds the neighbors of one node, sorted by (neighbor id, edge id), and in a graph with times by (time, neighbor
// id, edge id). That order is a property of the data set and not of how it was read or partitioned, so that "the third
// neighbor of v" is the same edge everywhere.
#pragma once
#include <cstdint>

#include "common/tensor.h"
#include "common/thread_pool.h"

namespace gld {

// indptr int64 [num_rows + 1]; indices int32 or int64 [num_edges], ids of the other endpoint; edge_ids int32 or int64
// [num_edges], global, or undefined where an edge's id is its position. Optional, undefined where absent: times int64
// [num_edges]; weight_sums float64 [num_edges], within each row the sums of the weights up to and with each edge.
struct Csr {
  Tensor indptr, indices, edge_ids;
  int64_t num_cols = 0;
  Tensor times, weight_sums;

  int64_t num_rows() const { return indptr.shape[0] - 1; }
  int64_t num_edges() const { return indices.shape[0]; }
};

// Checks dtypes and shapes, and that indptr starts at 0 and ends at num_edges. O(1).
Csr make_csr(Tensor indptr, Tensor indices, Tensor edge_ids, int64_t num_cols);

// Checks that indptr ascends, that indices lie in [0, num_cols), and that each row is in canonical order. O(edges).
void validate_csr(const Csr& csr, ThreadPool& pool);

// Builds the canonical form of a COO list. `row`, `col` int32 or int64 [E]; `edge_ids` may be undefined: then an
// edge's id is its position in the list. Indices are stored as int32 where num_cols fits, edge ids where they fit.
// Ids outside [0, num_rows) x [0, num_cols) throw UnknownId with the id and its position.
Csr build_csr(const Tensor& row, const Tensor& col, const Tensor& edge_ids, int64_t num_rows, int64_t num_cols,
              ThreadPool& pool);

// The rows `rows` (int32 or int64 [n]) in that order, with dtypes kept. Edge ids that were positions become explicit.
Csr take_rows(const Csr& csr, const Tensor& rows, ThreadPool& pool);

}  // namespace gld

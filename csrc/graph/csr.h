// Compressed sparse rows in canonical order.
//
// A row holds the neighbors of one node, sorted by (neighbor id, edge id), and in a graph with times by (time, neighbor
// id, edge id). That order is a property of the data set and not of how it was read or partitioned, so that "the third
// neighbor of v" is the same edge everywhere.
#pragma once
#include <cstdint>
#include <memory>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "graph/page_watch.h"

namespace gld {

// indptr int64 [num_rows + 1]; indices int32 or int64 [num_edges], ids of the other endpoint; edge_ids int32 or int64
// [num_edges], global, or undefined where an edge's id is its position. The others are optional, [num_edges] each, in
// the order of the edges, and undefined where absent.
struct Csr {
  Tensor indptr, indices, edge_ids;
  int64_t num_cols = 0;
  Tensor times;                      // int64, ascending within each row
  Tensor weight_sums;                // float64, see weights.h
  Tensor positive_counts;            // int32, see weights.h
  Tensor weights;                    // any float dtype, finite and >= 0
  std::shared_ptr<PageWatch> watch;  // null where the arrays are in memory for certain

  int64_t num_rows() const { return indptr.shape[0] - 1; }
  int64_t num_edges() const { return indices.shape[0]; }
  bool sorted_by_neighbor() const { return !times.defined(); }
};

// What edges of a list carry besides their ends, one entry per edge; undefined where absent.
struct EdgeData {
  Tensor ids;      // int32 or int64; undefined: an edge's id is its position in the list
  Tensor weights;  // float16, bfloat16, float32 or float64
  Tensor times;    // int32 or int64
};

// Checks dtypes and shapes, and reads no entry: the arrays may lie on a device.
void check_csr_arrays(const Csr& parts);

// The same, and that indptr starts at 0 and ends at num_edges; gives `parts` back. O(1).
Csr make_csr(Csr parts);

// Checks that indptr ascends, that indices lie in [0, num_cols), that each row is in canonical order, and that sums of
// weights ascend in one unit (weights.h). O(edges).
void validate_csr(const Csr& csr, ThreadPool& pool);

// Builds the canonical form of a COO list. `row`, `col` int32 or int64 [E]. Indices are stored as int32 where num_cols
// fits, edge ids where they fit, times as int64; weights keep their dtype. Ids outside [0, num_rows) x [0, num_cols)
// throw UnknownId with the id and its position; a weight that is negative, infinite or not a number throws
// InvalidArgument.
Csr build_csr(const Tensor& row, const Tensor& col, const EdgeData& data, int64_t num_rows, int64_t num_cols,
              ThreadPool& pool);

// The rows `rows` (int32 or int64 [n]) in that order, with dtypes kept. Edge ids that were positions become explicit.
// Takes times and weights along; weight_sums and positive_counts are made anew by sum_weights() (weights.h).
Csr take_rows(const Csr& csr, const Tensor& rows, ThreadPool& pool);

}  // namespace gld

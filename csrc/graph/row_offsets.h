// The offsets of a graph's rows, and its neighbors, as they are read while a graph is sampled: from mapped files that
// nobody has read before, so that each entry is checked where it is used: two comparisons a row, and one pass over the
// neighbors of a block while they lie in the cache.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "graph/csr.h"

namespace gld {

// Positions [begin, end) of the graph's arrays.
struct RowSpan {
  int64_t begin, end;

  GLD_HOST_DEVICE int64_t size() const { return end - begin; }
};

// Throws PartitionFormat, of a row whose offsets are not in order within the edges.
[[noreturn]] void refuse_row(const int64_t* indptr, int64_t row, int64_t num_edges);

// Throws UnknownId, of the first of ids [count], which were copied out of a graph, that is outside [0, num_cols).
void check_neighbors(const int32_t* ids, int64_t count, int64_t num_cols);
void check_neighbors(const int64_t* ids, int64_t count, int64_t num_cols);
// Whether all ids [count] are in [0, num_nodes).
bool are_nodes(const int32_t* ids, int64_t count, int64_t num_nodes);
bool are_nodes(const int64_t* ids, int64_t count, int64_t num_nodes);

struct RowOffsets {
  const int64_t* indptr;
  int64_t num_edges;

  explicit RowOffsets(const Csr& csr) : indptr(csr.indptr.as<int64_t>()), num_edges(csr.num_edges()) {}
  RowOffsets(const int64_t* indptr, int64_t num_edges) : indptr(indptr), num_edges(num_edges) {}

  // Where a row lies; false where its offsets are not in order within the edges.
  GLD_HOST_DEVICE bool find(int64_t row, RowSpan* span) const {
    *span = {indptr[row], indptr[row + 1]};
    // A negative number is a huge one here.
    return static_cast<uint64_t>(span->begin) <= static_cast<uint64_t>(span->end) &&
           static_cast<uint64_t>(span->end) <= static_cast<uint64_t>(num_edges);
  }

  // The same on the host, where it throws PartitionFormat.
  RowSpan operator[](int64_t row) const {
    RowSpan span;
    if (!find(row, &span)) refuse_row(indptr, row, num_edges);
    return span;
  }

  void prefetch(int64_t row) const { __builtin_prefetch(indptr + row); }
};

// int64 [n]: edges of rows int64 [n], which exist. Throws PartitionFormat as above.
Tensor degrees_of(const Csr& csr, const Tensor& rows);

}  // namespace gld

// What a hop reads of a graph, for host and device: the part of a row that may be drawn, ids of either dtype, and the
// random stream of a node.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/host_device.h"
#include "common/rng.h"
#include "common/tensor.h"
#include "graph/row_offsets.h"
#include "sampling/pickers.h"

namespace gld {

// Part of a row, positions [start, start + count) of the graph's arrays: the neighbors that may be drawn.
struct Candidates {
  int64_t start, count;
};

GLD_HOST_DEVICE inline Candidates whole_row(RowSpan row) { return {row.begin, row.size()}; }

// The row's edges that are not later than `time`. Rows are in the order of times.
GLD_HOST_DEVICE inline Candidates row_until(RowSpan row, const int64_t* edge_times, int64_t time) {
  return {row.begin, count_up_to(edge_times + row.begin, row.size(), time)};
}

// The last `count` of them.
GLD_HOST_DEVICE inline Candidates last_of(Candidates from, int64_t count) {
  return {from.start + from.count - count, count};
}

// How many candidates have a positive weight. `positive_counts` (graph/weights.h) is null where all have; candidates
// begin where their row does.
GLD_HOST_DEVICE inline int64_t num_positive(const int32_t* positive_counts, Candidates from) {
  return from.count == 0 || positive_counts == nullptr ? from.count : positive_counts[from.start + from.count - 1];
}

GLD_HOST_DEVICE inline const int32_t* counts_of_row(const int32_t* positive_counts, Candidates from) {
  return positive_counts == nullptr ? nullptr : positive_counts + from.start;
}

// Asks for the values at positions [from.start, from.start + from.count) of an array, or the first kilobyte of them.
template <typename Value>
inline void prefetch_values(const Value* values, Candidates from) {
  constexpr int64_t kLine = 64 / sizeof(Value);
  const int64_t end = from.start + std::min<int64_t>(from.count, 16 * kLine);
  for (int64_t i = from.start; i < end; i += kLine) __builtin_prefetch(values + i);
}

// Reads ids of either dtype, or gives the position itself. The branch is the same for every edge of a graph.
class IdReader {
 public:
  explicit IdReader(const int64_t* ids) : wide_(ids) {}
  explicit IdReader(const Tensor& ids) {
    if (!ids.defined()) return;
    if (ids.dtype == kInt32)
      narrow_ = ids.as<int32_t>();
    else
      wide_ = ids.as<int64_t>();
  }
  GLD_HOST_DEVICE int64_t operator()(int64_t position) const {
    return narrow_ != nullptr ? narrow_[position] : wide_ != nullptr ? wide_[position] : position;
  }
  void prefetch(Candidates from) const {
    if (narrow_ != nullptr) prefetch_values(narrow_, from);
    if (wide_ != nullptr) prefetch_values(wide_, from);
  }
  // Calls body(array) with the ids themselves, of which there are some.
  template <typename Body>
  void with_ids(Body&& body) const {
    if (narrow_ != nullptr)
      body(narrow_);
    else
      body(wide_);
  }

 private:
  const int32_t* narrow_ = nullptr;
  const int64_t* wide_ = nullptr;
};

struct EdgeIdReader : IdReader {
  explicit EdgeIdReader(const Csr& csr) : IdReader(csr.edge_ids) {}
};

// The random stream of one node of the frontier, and the key that all nodes of its tree share.
struct PickStream : NodeStream {
  uint64_t tree_key;
  GLD_HOST_DEVICE PickStream(uint64_t key, int64_t id) : NodeStream(key, id), tree_key(key) {}
};

GLD_HOST_DEVICE inline PickStream stream_of(uint64_t key, int64_t id, const int64_t* trees, int64_t i) {
  return PickStream(trees == nullptr ? key : absorb(key, static_cast<uint64_t>(trees[i])), id);
}

}  // namespace gld

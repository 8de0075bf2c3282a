// The picking of one block of nodes on the CPU, shared by the one-hop sampler and the batch builder.
#pragma once
#include <algorithm>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "common/tensor.h"
#include "graph/csr.h"
#include "sampling/neighbor_sampler.h"
#include "sampling/pickers.h"

namespace gld {

// Beyond this fan-out a hash set finds repeated picks faster than a scan of them.
constexpr int64_t kScanLimit = 96;
constexpr int64_t kPrefetchRows = 16;

// Reads edge ids of either dtype, or gives the position itself. The branch is the same for every edge of a graph.
class EdgeIdReader {
 public:
  explicit EdgeIdReader(const Csr& csr) {
    if (!csr.edge_ids.defined()) return;
    if (csr.edge_ids.dtype == kInt32)
      narrow_ = csr.edge_ids.as<int32_t>();
    else
      wide_ = csr.edge_ids.as<int64_t>();
  }
  int64_t operator()(int64_t position) const {
    return narrow_ != nullptr ? narrow_[position] : wide_ != nullptr ? wide_[position] : position;
  }

 private:
  const int32_t* narrow_ = nullptr;
  const int64_t* wide_ = nullptr;
};

// Part of a row, positions [start, start + count) of the graph's arrays: the neighbors that may be drawn.
struct Candidates {
  int64_t start, count;
};

// The random stream of one node of the frontier.
inline NodeStream stream_of(uint64_t key, int64_t id, const int64_t* trees, int64_t i) {
  return NodeStream(trees == nullptr ? key : absorb(key, static_cast<uint64_t>(trees[i])), id);
}

// A picker has: candidates(row, i) of the i-th node of the frontier, num_picks(candidates), and pick(stream,
// candidates, positions), which writes num_picks positions relative to candidates.start.
struct UniformPicker {
  const int64_t* indptr;
  int64_t fanout;
  bool replace;

  Candidates candidates(int64_t row, int64_t) const { return {indptr[row], indptr[row + 1] - indptr[row]}; }
  int64_t num_picks(Candidates from) const { return pick_count(from.count, fanout, replace); }
  void pick(NodeStream stream, Candidates from, int64_t* positions) const {
    if (fanout == kTakeAll) return pick_all(from.count, positions);
    if (replace) {
      if (from.count > 0) pick_with_replacement(stream, from.count, fanout, positions);
      return;
    }
    if (from.count <= fanout) return pick_all(from.count, positions);
    if (fanout <= kScanLimit) return pick_without_replacement(stream, from.count, fanout, positions);
    std::unordered_set<int64_t> picked;
    picked.reserve(fanout);
    pick_without_replacement(
        stream, from.count, fanout, positions,
        [&picked](int64_t, int64_t position) { return picked.count(position) > 0; },
        [&picked](int64_t, int64_t position) { picked.insert(position); });
  }
};

// Calls body(picker) with the picker that serves the draw. `times` are those of the frontier, or null.
template <typename Body>
void with_picker(const Csr& csr, const HopDraw& draw, const int64_t* times, Body&& body) {
  (void)times;
  body(UniformPicker{csr.indptr.as<int64_t>(), draw.fanout, draw.how.replace});
}

// The candidates of nodes [begin, end) of the frontier, into out[0 ...]; `row_of(i)` is the row of node i.
template <typename Picker, typename RowOf>
inline void read_candidates(const Picker& picker, const int64_t* indptr, RowOf row_of, int64_t begin, int64_t end,
                            Candidates* out) {
  for (int64_t i = begin; i < end; ++i) {
    if (i + kPrefetchRows < end) __builtin_prefetch(indptr + row_of(i + kPrefetchRows));
    *out++ = picker.candidates(row_of(i), i);
  }
}

}  // namespace gld

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

inline void pick_positions(NodeStream stream, int64_t degree, const HopDraw& draw, int64_t* positions) {
  if (draw.fanout == kTakeAll) return pick_all(degree, positions);
  if (draw.replace) {
    if (degree > 0) pick_with_replacement(stream, degree, draw.fanout, positions);
    return;
  }
  if (degree <= draw.fanout) return pick_all(degree, positions);
  if (draw.fanout <= kScanLimit) return pick_without_replacement(stream, degree, draw.fanout, positions);
  std::unordered_set<int64_t> picked;
  picked.reserve(draw.fanout);
  pick_without_replacement(
      stream, degree, draw.fanout, positions,
      [&picked](int64_t, int64_t position) { return picked.count(position) > 0; },
      [&picked](int64_t, int64_t position) { picked.insert(position); });
}

// Degrees of `count` rows into `starts` and `degrees`; `row_of(i)` is the row of the i-th node.
template <typename RowOf>
inline void read_rows(const int64_t* indptr, RowOf row_of, int64_t count, int64_t* starts, int64_t* degrees) {
  for (int64_t i = 0; i < count; ++i) {
    if (i + kPrefetchRows < count) __builtin_prefetch(indptr + row_of(i + kPrefetchRows));
    const int64_t row = row_of(i);
    starts[i] = indptr[row];
    degrees[i] = indptr[row + 1] - indptr[row];
  }
}

}  // namespace gld

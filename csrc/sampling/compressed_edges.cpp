#include "sampling/compressed_edges.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/error.h"

namespace gld {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

// Says for each target where its edges begin; targets that have none begin where the next one does.
void find_offsets(const int64_t* cols, int64_t count, int64_t num_cols, int32_t* offsets) {
  int64_t next = 0;  // the first target whose offset is not known
  for (int64_t edge = 0; edge < count; ++edge) {
    const int64_t col = cols[edge];
    if (col < std::max<int64_t>(next - 1, 0) || col >= num_cols)
      throw InvalidArgument(
          message("edge_index: expected ascending targets in [0, ", num_cols, "), got ", col, " at place ", edge));
    while (next <= col) offsets[next++] = static_cast<int32_t>(edge);
  }
  while (next <= num_cols) offsets[next++] = static_cast<int32_t>(count);
}

// The edges of one target in the order of their sources, those of equal sources as they came: `keys` are a source and,
// in the lower half, a place each. Few are put where the number of smaller ones says, without a branch to mispredict.
class InOrder {
 public:
  uint64_t& key(int64_t place) {
    if (static_cast<size_t>(place) >= keys_.size()) keys_.resize(2 * keys_.size());
    return keys_[place];
  }

  // put(rank, key) of each of the first `count`.
  template <typename Put>
  void put_all(int64_t count, Put put) {
    constexpr int64_t kFew = 24;
    uint64_t* const keys = keys_.data();
    if (count > kFew) {
      std::sort(keys, keys + count);
      for (int64_t rank = 0; rank < count; ++rank) put(rank, keys[rank]);
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      int64_t rank = 0;
      for (int64_t j = 0; j < count; ++j) rank += keys[j] < keys[i] ? 1 : 0;
      put(rank, keys[i]);
    }
  }

 private:
  std::vector<uint64_t> keys_ = std::vector<uint64_t>(64);
};

}  // namespace

CompressedEdges compress_edges(const Tensor& edge_index, const Tensor& edge_ids, int64_t num_cols) {
  if (edge_index.dtype != kInt64 || edge_index.shape.size() != 2 || edge_index.shape[0] != 2)
    throw InvalidArgument("edge_index: expected int64 [2, edges]");
  const int64_t count = edge_index.shape[1];
  if (edge_ids.defined()) check_int64_vector(edge_ids, count, "edge_ids");
  if (num_cols < 0 || num_cols >= kMost || count > kMost)
    throw InvalidArgument(
        message("edge_index: expected at most ", kMost, " targets and edges, got ", num_cols, " and ", count));
  CompressedEdges out{empty({num_cols + 1}, kInt32), empty({count}, kInt32),
                      edge_ids.defined() ? empty({count}, kInt64) : Tensor{}};
  int32_t *const offsets = out.offsets.as<int32_t>(), *const rows = out.rows.as<int32_t>();
  int64_t* const ids = edge_ids.defined() ? out.edge_ids.as<int64_t>() : nullptr;
  const int64_t* const from = edge_index.as<int64_t>();
  find_offsets(from + count, count, num_cols, offsets);
  InOrder in_order;
  for (int64_t col = 0; col < num_cols; ++col) {
    const int64_t first = offsets[col], num_edges = offsets[col + 1] - first;
    for (int64_t place = 0; place < num_edges; ++place) {
      const int64_t row = from[first + place];
      if (row < 0 || row > kMost)
        throw InvalidArgument(message("edge_index: expected sources in [0, ", kMost, "], got ", row));
      in_order.key(place) = static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(place);
    }
    in_order.put_all(num_edges, [&](int64_t rank, uint64_t key) {
      rows[first + rank] = static_cast<int32_t>(key >> 32);
      if (ids != nullptr) ids[first + rank] = edge_ids.as<int64_t>()[first + static_cast<uint32_t>(key)];
    });
  }
  return out;
}

}  // namespace gld

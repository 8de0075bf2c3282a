#include "sampling/drop_edges.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/error.h"
#include "common/rng.h"

namespace gld {
namespace {

// Ids of which few are in a batch: a table of bits tells most of the others, a search the rest.
class IdSet {
 public:
  explicit IdSet(const Tensor& ids) : sorted_(ids.as<int64_t>(), ids.as<int64_t>() + ids.numel()) {
    constexpr size_t kBitsPerId = 32;
    std::sort(sorted_.begin(), sorted_.end());
    size_t num_words = 1;
    while (num_words * 64 < sorted_.size() * kBitsPerId) num_words *= 2;
    words_.assign(num_words, 0);
    for (const int64_t id : sorted_) words_[word(id)] |= bit(id);
  }
  bool has(int64_t id) const {
    return (words_[word(id)] & bit(id)) != 0 && std::binary_search(sorted_.begin(), sorted_.end(), id);
  }

 private:
  size_t word(int64_t id) const { return (hash(id) >> 6) & (words_.size() - 1); }
  static uint64_t bit(int64_t id) { return uint64_t{1} << (hash(id) & 63); }
  static uint64_t hash(int64_t id) { return (static_cast<uint64_t>(id) * kGolden) >> 20; }

  std::vector<int64_t> sorted_;
  std::vector<uint64_t> words_;
};

// The entries that are not at `dropped`, which ascends.
void copy_kept(const int64_t* from, int64_t count, const std::vector<int64_t>& dropped, int64_t* to) {
  int64_t begin = 0;
  for (size_t i = 0; i <= dropped.size(); ++i) {
    const int64_t end = i < dropped.size() ? dropped[i] : count;
    if (end > begin) std::memcpy(to, from + begin, sizeof(int64_t) * static_cast<size_t>(end - begin));
    to += end - begin;
    begin = end + 1;
  }
}

}  // namespace

KeptEdges drop_edges(const Tensor& edge_index, const Tensor& edge_ids, const Tensor& excluded) {
  check_index_vector(edge_ids, "edge_ids");
  check_index_vector(excluded, "excluded");
  const int64_t count = edge_ids.numel();
  check_int64_vector(edge_ids, count, "edge_ids");
  check_int64_vector(excluded, excluded.numel(), "excluded");
  if (edge_index.dtype != kInt64 || edge_index.shape != std::vector<int64_t>{2, count})
    throw InvalidArgument(message("edge_index: expected int64 [2, ", count, "]"));
  const IdSet ids(excluded);
  std::vector<int64_t> dropped;
  for (int64_t i = 0; i < count; ++i)
    if (ids.has(edge_ids.as<int64_t>()[i])) dropped.push_back(i);
  Tensor positions = empty({static_cast<int64_t>(dropped.size())}, kInt64);
  std::copy(dropped.begin(), dropped.end(), positions.as<int64_t>());
  if (dropped.empty()) return {edge_index, edge_ids, std::move(positions)};
  const int64_t num_kept = count - positions.numel();
  KeptEdges kept{empty({2, num_kept}, kInt64), empty({num_kept}, kInt64), std::move(positions)};
  for (int64_t row = 0; row < 2; ++row)
    copy_kept(edge_index.as<int64_t>() + row * count, count, dropped, kept.edge_index.as<int64_t>() + row * num_kept);
  copy_kept(edge_ids.as<int64_t>(), count, dropped, kept.edge_ids.as<int64_t>());
  return kept;
}

}  // namespace gld

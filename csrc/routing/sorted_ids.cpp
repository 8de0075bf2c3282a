#include "routing/sorted_ids.h"

#include <algorithm>

namespace gld {
namespace {

constexpr int64_t kGrain = 1024;
constexpr int kTogether = 16;  // searches under way at once: each waits for memory at every step

// The searches of up to kTogether ids in lockstep: they halve the same lengths, so that what one asks of memory arrives
// while the others compare.
template <typename Key, typename Id>
void find_together(const Key* sorted, int64_t size, const Id* ids, int64_t count, int64_t* rows) {
  const Key* first[kTogether];
  std::fill_n(first, count, sorted);
  for (int64_t length = size; length > 1;) {
    const int64_t half = length / 2, next_half = (length - half) / 2;
    for (int64_t i = 0; i < count; ++i) {
      first[i] += static_cast<int64_t>(first[i][half - 1]) < static_cast<int64_t>(ids[i]) ? half : 0;
      if (next_half > 0) __builtin_prefetch(first[i] + next_half - 1);
    }
    length -= half;
  }
  for (int64_t i = 0; i < count; ++i)
    rows[i] = static_cast<int64_t>(*first[i]) == static_cast<int64_t>(ids[i]) ? first[i] - sorted : -1;
}

}  // namespace

Tensor find_sorted(const Tensor& sorted, const Tensor& ids, ThreadPool* pool) {
  check_index_vector(sorted, "sorted");
  check_index_vector(ids, "ids");
  const int64_t size = sorted.numel(), count = ids.numel();
  Tensor found = empty({count}, kInt64);
  int64_t* rows = found.as<int64_t>();
  dispatch_index(sorted.dtype, "sorted", [&](auto key_tag) {
    dispatch_index(ids.dtype, "ids", [&](auto id_tag) {
      const auto* keys = sorted.as<decltype(key_tag)>();
      const auto* asked = ids.as<decltype(id_tag)>();
      const auto find = [&](int64_t begin, int64_t end) {
        if (size == 0) return static_cast<void>(std::fill(rows + begin, rows + end, -1));
        for (int64_t i = begin; i < end; i += kTogether)
          find_together(keys, size, asked + i, std::min<int64_t>(kTogether, end - i), rows + i);
      };
      if (pool == nullptr) return find(0, count);
      pool->parallel_for(count, kGrain, find);
    });
  });
  return found;
}

}  // namespace gld

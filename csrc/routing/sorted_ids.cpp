#include "routing/sorted_ids.h"

#include <algorithm>

#include "common/simd.h"

namespace gld {
namespace {

constexpr int64_t kGrain = 4096;
constexpr int64_t kIdsPerEntry = 8;  // of the list, for each entry of the index, at least
constexpr int kMostShift = 63;
constexpr int64_t kTogether = 32;  // look-ups under way at once: what one asks of memory arrives while others compare
constexpr int64_t kWindow = 32;    // ids compared without a branch

// How many of kWindow ids in order are below `id`.
template <typename Key>
int64_t count_below(const Key* keys, Key id) {
  Key below = 0;  // of the width of the ids, so that a compiler adds what it compares
  for (int64_t k = 0; k < kWindow; ++k) below += keys[k] < id;
  return below;
}

// Positions in the list by places of bits; -1 where a bit is not set. Most machines count bits by an instruction.
GLD_SIMD void find_bits(const IdBits::Word* words, const int64_t* at, int64_t count, int64_t* rows) {
  for (int64_t i = 0; i < count; ++i) {
    const IdBits::Word word = words[at[i] >> 6];
    const uint64_t bit = uint64_t{1} << (at[i] & 63);
    const int64_t row = word.before + __builtin_popcountll(word.bits & (bit - 1));
    rows[i] = (word.bits & bit) != 0 ? row : -1;
  }
}

}  // namespace

template <typename Key>
void IdBits::build(const Key* keys, int64_t size) {
  first = keys[0];
  span = static_cast<int64_t>(keys[size - 1]) - first + 1;
  words.assign(static_cast<size_t>((span >> 6) + 1), Word{0, 0});
  for (int64_t i = 0; i < size; ++i) {
    const int64_t at = keys[i] - first;
    words[static_cast<size_t>(at >> 6)].bits |= uint64_t{1} << (at & 63);
  }
  int64_t before = 0;
  for (Word& word : words) {
    word.before = before;
    before += __builtin_popcountll(word.bits);
  }
}

void IdBits::find(const int64_t* ids, int64_t count, int64_t* rows) const {
  int64_t at[kTogether];
  for (int64_t done = 0; done < count; done += kTogether) {
    const int64_t now = std::min(kTogether, count - done);
    for (int64_t i = 0; i < now; ++i) {
      const uint64_t place = static_cast<uint64_t>(ids[done + i]) - static_cast<uint64_t>(first);
      // What is outside is looked for behind the last, where no list has an id.
      at[i] = place < static_cast<uint64_t>(span) ? static_cast<int64_t>(place) : span;
      __builtin_prefetch(&words[static_cast<size_t>(at[i] >> 6)]);
    }
    find_bits(words.data(), at, now, rows + done);
  }
}

template <typename Key>
void IdIndex<Key>::build(const Tensor& sorted, ThreadPool* pool) {
  keys = sorted.as<Key>();
  size = sorted.numel();
  if (size == 0) return;
  first = keys[0];
  last = keys[size - 1];
  const auto wrong = [&](int64_t i) {
    return PartitionFormat(message("edge ids: expected ascending ids, got ", keys[i], " at ", i, " of ", size));
  };
  if (last < first) throw wrong(size - 1);
  const int64_t most = std::max<int64_t>(size / kIdsPerEntry - 1, 1);  // one entry more ends the last stretch
  // Few ids that lie 2^63 apart have two stretches.
  while (static_cast<uint64_t>(stretch(last)) >= static_cast<uint64_t>(most) && shift < kMostShift) ++shift;
  starts.resize(static_cast<size_t>(stretch(last) + 2));
  const auto fill = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t before = i == 0 ? first : static_cast<int64_t>(keys[i - 1]);
      // Also against both ends: other parts of the list are not compared yet, and nothing is written beside the index.
      if (before < first || keys[i] > last || (i > 0 && keys[i] <= before)) throw wrong(i);
      const int64_t own = stretch(keys[i]);
      for (int64_t k = i == 0 ? 0 : stretch(before) + 1; k <= own; ++k)
        starts[static_cast<size_t>(k)] = static_cast<std::make_unsigned_t<Key>>(i);
    }
  };
  if (pool == nullptr)
    fill(0, size);
  else
    pool->parallel_for(size, kGrain, fill);
  starts.back() = static_cast<std::make_unsigned_t<Key>>(size);
}

template <typename Key>
void IdIndex<Key>::find(const int64_t* ids, int64_t count, int64_t* rows) const {
  if (size == 0) return static_cast<void>(std::fill_n(rows, count, -1));
  int64_t entries[kTogether], begins[kTogether], lengths[kTogether];
  for (int64_t done = 0; done < count; done += kTogether, ids += kTogether, rows += kTogether) {
    const int64_t now = std::min(kTogether, count - done);
    for (int64_t i = 0; i < now; ++i) {
      entries[i] = ids[i] < first || ids[i] > last ? 0 : stretch(ids[i]);
      __builtin_prefetch(&starts[static_cast<size_t>(entries[i])]);
    }
    for (int64_t i = 0; i < now; ++i) {
      begins[i] = static_cast<int64_t>(starts[static_cast<size_t>(entries[i])]);
      lengths[i] = static_cast<int64_t>(starts[static_cast<size_t>(entries[i]) + 1]) - begins[i];
      if (lengths[i] <= kWindow) begins[i] = std::max<int64_t>(std::min(begins[i], size - kWindow), 0);
      __builtin_prefetch(keys + begins[i] + (lengths[i] > kWindow ? lengths[i] / 2 : 0));
    }
    for (int64_t i = 0; i < now; ++i) {
      if (ids[i] < first || ids[i] > last) {
        rows[i] = -1;
        continue;
      }
      const Key id = static_cast<Key>(ids[i]);
      int64_t begin = begins[i];
      for (int64_t length = lengths[i]; length > kWindow;) {
        const int64_t half = length / 2;
        begin += keys[begin + half - 1] < id ? half : 0;
        length -= half;
      }
      // A window that starts earlier, so as to end in the list, only has more ids below in front.
      begin = std::max<int64_t>(std::min(begin, size - kWindow), 0);
      if (size >= kWindow)
        begin += count_below(keys + begin, id);
      else
        begin = std::lower_bound(keys, keys + size, id) - keys;
      rows[i] = begin < size && keys[begin] == id ? begin : -1;
    }
  }
}

SortedIds::SortedIds(Tensor sorted, ThreadPool* pool, bool with_bits) : sorted_(std::move(sorted)) {
  check_index_vector(sorted_, "sorted");
  dispatch_index(sorted_.dtype, "sorted", [&](auto key) {
    using Key = decltype(key);
    auto& index = index_.emplace<IdIndex<Key>>();
    index.build(sorted_, pool);
    const int64_t size = index.size;
    const uint64_t spread = static_cast<uint64_t>(index.last) - static_cast<uint64_t>(index.first);
    if (with_bits && size > 0 && spread < static_cast<uint64_t>(kMostSpread * size))
      index_.emplace<IdBits>().build(sorted_.as<Key>(), size);
  });
}

void SortedIds::find(const int64_t* ids, int64_t count, int64_t* rows) const {
  std::visit([&](const auto& index) { index.find(ids, count, rows); }, index_);
}

Tensor SortedIds::find(const Tensor& ids, ThreadPool* pool) const {
  check_index_vector(ids, "ids");
  const int64_t count = ids.numel();
  Tensor found = empty({count}, kInt64);
  int64_t* rows = found.as<int64_t>();
  dispatch_index(ids.dtype, "ids", [&](auto type) {
    const auto* asked = ids.as<decltype(type)>();
    const auto part = [&](int64_t begin, int64_t end) {
      int64_t wide[kTogether];
      for (int64_t i = begin; i < end; i += kTogether) {
        const int64_t now = std::min(kTogether, end - i);
        std::copy_n(asked + i, now, wide);
        find(wide, now, rows + i);
      }
    };
    if (pool == nullptr) return part(0, count);
    pool->parallel_for(count, kGrain, part);
  });
  return found;
}

int64_t SortedIds::index_bytes() const {
  return std::visit(
      [](const auto& index) {
        if constexpr (std::is_same_v<std::decay_t<decltype(index)>, IdBits>)
          return static_cast<int64_t>(index.words.size() * sizeof(index.words[0]));
        else
          return static_cast<int64_t>(index.starts.size() * sizeof(index.starts[0]));
      },
      index_);
}

}  // namespace gld

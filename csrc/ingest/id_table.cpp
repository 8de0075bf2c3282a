#include "ingest/id_table.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "common/error.h"
#include "common/rng.h"

namespace gld {
namespace {

constexpr uint32_t kEmpty = ~uint32_t{0};
constexpr int64_t kAhead = 32;  // look-ups whose lines of memory are asked for before the first is read
constexpr int64_t kGrain = 16384;

uint64_t hash_of(int64_t id) { return mix64(static_cast<uint64_t>(id) + kGolden); }

uint64_t hash_of(std::string_view text) {
  uint64_t hash = mix64(text.size() + kGolden);
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    hash = mix64(hash ^ word);
  }
  if (i < text.size()) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, text.size() - i);
    hash = mix64(hash ^ word);
  }
  return hash;
}

// Calls `body` with a function that gives the i-th id.
template <typename Body>
decltype(auto) with_ids(const IdColumn& column, Body&& body) {
  if (column.is_text()) return body([&column](int64_t i) { return column.text(i); });
  return body([&column](int64_t i) { return column.integer(i); });
}

}  // namespace

void check_id_column(const IdColumn& column, const char* name) {
  if (!column.is_text()) {
    if (!column.ids.defined() || column.ids.shape.size() != 1 || column.ids.dtype != kInt64)
      throw InvalidArgument(message(name, ": expected int64 [n]"));
    return;
  }
  if (column.offsets.shape.size() != 1 || column.offsets.dtype != kInt64 || column.offsets.shape[0] < 1)
    throw InvalidArgument(message(name, ": expected offsets int64 [n + 1]"));
  if (!column.bytes.defined() || column.bytes.dtype.size() != 1)
    throw InvalidArgument(message(name, ": expected bytes uint8 [n]"));
  const int64_t* offsets = column.offsets.as<const int64_t>();
  const int64_t count = column.offsets.shape[0] - 1;
  bool ascend = offsets[0] >= 0 && offsets[count] <= column.bytes.numel();
  for (int64_t i = 0; i < count; ++i) ascend = ascend && offsets[i] <= offsets[i + 1];
  if (!ascend)
    throw InvalidArgument(message(name, ": expected ascending offsets within ", column.bytes.numel(), " bytes"));
}

IdTable::IdTable(IdColumn ids) : ids_(std::move(ids)) {
  check_id_column(ids_, "ids");
  const int64_t count = ids_.size();
  if (count >= static_cast<int64_t>(kEmpty)) throw InvalidArgument(message("ids: expected fewer, got ", count));
  uint64_t slots = 16;
  while (slots < static_cast<uint64_t>(count) * 3 / 2) slots *= 2;
  mask_ = slots - 1;
  slots_.assign(slots, kEmpty);
  with_ids(ids_, [&](auto get) { build(get); });
}

template <typename Get>
void IdTable::build(const Get& get) {
  uint64_t hashes[kAhead];
  const int64_t count = ids_.size();
  for (int64_t first = 0; first < count; first += kAhead) {
    const int64_t last = std::min(first + kAhead, count);
    for (int64_t i = first; i < last; ++i) {
      hashes[i - first] = hash_of(get(i)) & mask_;
      __builtin_prefetch(&slots_[hashes[i - first]], 1);
    }
    for (int64_t i = first; i < last; ++i) {
      uint64_t slot = hashes[i - first];
      while (slots_[slot] != kEmpty) slot = (slot + 1) & mask_;
      slots_[slot] = static_cast<uint32_t>(i);
    }
  }
}

template <typename Get, typename GetAsked>
void IdTable::find_range(const Get& get, const GetAsked& asked, int64_t begin, int64_t end, int64_t* out) const {
  uint64_t hashes[kAhead];
  uint32_t heads[kAhead];
  for (int64_t first = begin; first < end; first += kAhead) {
    const int64_t count = std::min(kAhead, end - first);
    for (int64_t i = 0; i < count; ++i) {
      hashes[i] = hash_of(asked(first + i)) & mask_;
      __builtin_prefetch(&slots_[hashes[i]]);
    }
    for (int64_t i = 0; i < count; ++i) {
      heads[i] = slots_[hashes[i]];
      if (heads[i] == kEmpty) continue;
      __builtin_prefetch(ids_.is_text() ? ids_.offsets.as<const int64_t>() + heads[i]
                                        : ids_.ids.as<const int64_t>() + heads[i]);
    }
    if (ids_.is_text())
      for (int64_t i = 0; i < count; ++i)
        if (heads[i] != kEmpty) __builtin_prefetch(ids_.text(heads[i]).data());
    for (int64_t i = 0; i < count; ++i) {
      const auto wanted = asked(first + i);
      uint64_t slot = hashes[i];
      uint32_t found = heads[i];
      while (found != kEmpty && get(found) != wanted) found = slots_[slot = (slot + 1) & mask_];
      out[first + i] = found == kEmpty ? -1 : static_cast<int64_t>(found);
    }
  }
}

Tensor IdTable::find(const IdColumn& asked, ThreadPool* pool) const {
  check_id_column(asked, "asked");
  if (asked.is_text() != ids_.is_text())
    throw InvalidArgument(message("asked: expected ", ids_.is_text() ? "texts" : "integers", ", as the list has"));
  Tensor out = empty({asked.size()}, kInt64);
  int64_t* const found = out.as<int64_t>();
  with_ids(ids_, [&](auto get) {
    with_ids(asked, [&](auto get_asked) {
      if constexpr (std::is_same_v<decltype(get(0)), decltype(get_asked(0))>)
        parallel_for(pool, asked.size(), kGrain,
                     [&](int64_t begin, int64_t end) { find_range(get, get_asked, begin, end, found); });
    });
  });
  return out;
}

}  // namespace gld

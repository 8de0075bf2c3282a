// The kernels of a gather, as functors for host and device (see sampling/cuda/batch_steps.h): rows of one logical
// tensor whose pieces lie in the memory of one or several GPUs, or in that of the host where the GPU can read it.
#pragma once
#include <cstdint>

#include "common/atomics.h"
#include "common/host_device.h"
#include "feature/cast_element.h"
#include "feature/cuda/row_cache.h"
#include "sampling/candidates.h"

namespace gld {

// Pieces of a tensor as kernels take them, by value: a gather is one launch whatever the number of pieces.
struct DeviceRows {
  static constexpr int kMaxParts = 16;
  const char* parts[kMaxParts];
  int64_t bounds[kMaxParts + 1];  // bounds[p] is the first row of parts[p]
  int num_parts;
  int64_t row_bytes;

  GLD_HOST_DEVICE int64_t num_rows() const { return bounds[num_parts]; }
  GLD_HOST_DEVICE const char* address(int64_t row) const {
    int part = 0;
    while (row >= bounds[part + 1]) ++part;
    return parts[part] + (row - bounds[part]) * row_bytes;
  }
};

// Where a wanted row is read and where it goes: to the output, and to the slot of a cache that takes it, if one does.
struct FoundRow {
  const char* from;
  char *to, *slot;
};

// Which rows are wanted, and where they go: out[positions[i]] = store[row_of_id(ids[i])], or out[i] where positions is
// null.
struct WantedRows {
  DeviceRows store;
  IdReader row_of_id;  // gives the id itself where ids are rows; else -1 for ids without a row
  int64_t num_ids;     // that there are
  IdReader ids;
  const int64_t* positions;
  int64_t num_wanted, num_out;
  char* out;
  int64_t out_bytes;  // of a row
  uint64_t* status;   // lowered to the first i whose id, row or position does not exist
  RowCacheView cache{};
  bool is_over_link = true;  // some rows are read from the memory of the host or of another GPU

  GLD_HOST_DEVICE int64_t place(int64_t i) const { return positions == nullptr ? i : positions[i]; }
  GLD_HOST_DEVICE bool has_place(int64_t i) const { return place(i) >= 0 && place(i) < num_out; }
  // The i-th row; -1 where it or its place does not exist.
  GLD_HOST_DEVICE int64_t row(int64_t i) const {
    const int64_t id = ids(i);
    const int64_t row = id >= 0 && id < num_ids ? row_of_id(id) : -1;
    return row < store.num_rows() && has_place(i) ? row : -1;
  }
  // Its number among the cached rows; negative where it is none.
  GLD_HOST_DEVICE int64_t cached_row(int64_t i) const { return row(i) - cache.first_row; }

  // Finds the i-th row and its place. No row is null: zeros are written. False where there is no place.
  GLD_HOST_DEVICE bool find(int64_t i, FoundRow* found) const {
    char* to = out + place(i) * out_bytes;
    const int64_t wanted = row(i);
    if (wanted < 0) {
      // Of a padded batch thousands of rows are none, and each has several threads.
      if (static_cast<uint64_t>(i) < atomic_read(status)) atomic_lower(status, static_cast<uint64_t>(i));
      *found = {nullptr, to, nullptr};
      return has_place(i);
    }
    const int32_t answer = cache.rows == nullptr ? RowCacheView::kMissed : cache.answers[i];
    *found = {answer >= 0 ? cache.address(answer) : store.address(wanted), to, cache.slot_to_fill(answer)};
    return true;
  }
};

// i / divisor and the rest, with a division of 32 bits where it does: that of 64 takes several times longer on a GPU.
GLD_HOST_DEVICE inline int64_t divide(int64_t i, int64_t divisor, int64_t* rest) {
  const bool is_small = ((i | divisor) >> 32) == 0;
  const int64_t quotient =
      is_small ? static_cast<int64_t>(static_cast<uint32_t>(i) / static_cast<uint32_t>(divisor)) : i / divisor;
  *rest = i - quotient * divisor;
  return quotient;
}

struct alignas(16) SixteenBytes {
  uint64_t halves[2];
};

// Calls body(Word{}) with the word of that many bytes: 1, 2, 4, 8 or 16.
template <typename Body>
void dispatch_word(int64_t bytes, Body&& body) {
  switch (bytes) {
    case 16:
      return body(SixteenBytes{});
    case 8:
      return body(uint64_t{});
    case 4:
      return body(uint32_t{});
    case 2:
      return body(uint16_t{});
    default:
      return body(uint8_t{});
  }
}

// A thread per part of a row, so that neighboring threads read neighboring memory: copy(from, to, part) makes a part of
// a row at `to` of that of the row at `from`, copy.clear(to, part) one of zeros, and copy.keep(from, to, part) the same
// part, as it is stored.
template <typename Copy>
struct GatherParts {
  WantedRows wanted;
  int64_t parts_per_row;
  Copy copy;

  GLD_HOST_DEVICE int64_t count() const { return wanted.num_wanted * parts_per_row; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    int64_t part;
    const int64_t row = divide(i, parts_per_row, &part);
    FoundRow found;
    if (!wanted.find(row, &found)) return;
    if (found.from == nullptr) return copy.clear(found.to, part);
    copy(found.from, found.to, part);
    if (found.slot != nullptr) copy.keep(found.from, found.slot, part);
  }
};

template <typename Word>
struct CopyWord {
  GLD_HOST_DEVICE void operator()(const char* from, char* to, int64_t word) const {
    reinterpret_cast<Word*>(to)[word] = reinterpret_cast<const Word*>(from)[word];
  }
  GLD_HOST_DEVICE void clear(char* to, int64_t word) const { reinterpret_cast<Word*>(to)[word] = Word{}; }
  GLD_HOST_DEVICE void keep(const char* from, char* to, int64_t word) const { (*this)(from, to, word); }
};

// A row copied word by word so that neighboring threads share lines of memory, of kLineBytes, wherever the row begins:
// thread 0 stands for the first word of the line in which the row begins. What is read over a link comes in such lines,
// and of rows that are no whole number of them nearly every group of threads would touch one more (Min et al., "Large
// graph convolutional network training with GPU-oriented data communication architecture", VLDB 2021). A GPU's own
// memory comes in quarters of them, and there the threads that have no word cost more.
template <typename Word>
struct GatherLines {
  static constexpr int64_t kLineBytes = 128, kWordsPerLine = kLineBytes / static_cast<int64_t>(sizeof(Word));
  WantedRows wanted;

  // Lines that a row may touch.
  GLD_HOST_DEVICE int64_t lines_per_row() const {
    return (wanted.out_bytes + 2 * kLineBytes - 1 - static_cast<int64_t>(sizeof(Word))) / kLineBytes;
  }
  GLD_HOST_DEVICE int64_t count() const { return wanted.num_wanted * lines_per_row() * kWordsPerLine; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    int64_t place;
    const int64_t row = divide(i, lines_per_row() * kWordsPerLine, &place);
    FoundRow found;
    if (!wanted.find(row, &found)) return;
    const int64_t before = static_cast<int64_t>(reinterpret_cast<uintptr_t>(found.from) % kLineBytes / sizeof(Word));
    const int64_t word = place - before;
    if (word < 0 || word >= wanted.out_bytes / static_cast<int64_t>(sizeof(Word))) return;
    if (found.from == nullptr) {
      reinterpret_cast<Word*>(found.to)[word] = Word{};
      return;
    }
    CopyWord<Word>{}(found.from, found.to, word);
    if (found.slot != nullptr) CopyWord<Word>{}(found.from, found.slot, word);
  }
};

// As cast_rows() does.
struct CastElement {
  ElementType from_type, to_type;

  GLD_HOST_DEVICE void operator()(const char* from, char* to, int64_t column) const {
    cast_element(from, from_type, to, to_type, column);
  }
  GLD_HOST_DEVICE void clear(char* to, int64_t column) const {
    const int64_t bytes = element_bytes(to_type);
    for (int64_t byte = column * bytes; byte < (column + 1) * bytes; ++byte) to[byte] = 0;
  }
  GLD_HOST_DEVICE void keep(const char* from, char* to, int64_t column) const {
    switch (element_bytes(from_type)) {
      case 1:
        return CopyWord<uint8_t>{}(from, to, column);
      case 2:
        return CopyWord<uint16_t>{}(from, to, column);
      case 4:
        return CopyWord<uint32_t>{}(from, to, column);
      default:
        return CopyWord<uint64_t>{}(from, to, column);
    }
  }
};

// Copies rows as they are, in words that divide the rows and all addresses.
template <typename Executor>
void run_copy(Executor& executor, const WantedRows& wanted, int64_t word_bytes) {
  dispatch_word(word_bytes, [&](auto word) {
    using Word = decltype(word);
    using Lines = GatherLines<Word>;
    if (wanted.is_over_link && wanted.out_bytes > Lines::kLineBytes && wanted.out_bytes % Lines::kLineBytes != 0) {
      const Lines lines{wanted};
      return executor.for_each(lines.count(), lines);
    }
    const GatherParts<CopyWord<Word>> parts{wanted, wanted.out_bytes / word_bytes, {}};
    executor.for_each(parts.count(), parts);
  });
}

template <typename Executor>
void run_cast(Executor& executor, const WantedRows& wanted, int64_t columns, const CastElement& cast) {
  const GatherParts<CastElement> parts{wanted, columns, cast};
  executor.for_each(parts.count(), parts);
}

}  // namespace gld

#include "feature/copy_rows.h"

#include <algorithm>
#include <cstring>

#include "common/simd.h"

namespace gld {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kBytesAhead = 8192;
constexpr size_t kUnrolledLines = 16;  // rows of at most that many whole lines are copied without a loop
constexpr size_t kGroup = 4;           // lines that are read before they are written
constexpr size_t kStreamed = 16;       // bytes of one write past the caches
constexpr int64_t kSmallestStream = int64_t{16} << 20;

// Half a line in a register, a vector extension of GCC and Clang: the compiler cuts it into what the instruction set
// has. Copies of longer ones than AVX2 has are made by way of the stack there.
constexpr size_t kHalf = kLine / 2;
typedef char Half __attribute__((vector_size(kHalf), aligned(1), may_alias));

// Reads `kLines` lines before it writes them: a row that shares its low address bits with its target, as rows of a
// power of two do, would have to wait for the writes otherwise.
template <size_t kLines, bool kStreaming>
GLD_INLINE void copy_lines(const char* from, char* to) {
  if constexpr (kStreaming) {
    StreamedPiece pieces[kLines * kLine / kStreamed];
    for (size_t i = 0; i < kLines * kLine / kStreamed; ++i) pieces[i] = load_piece(from + i * kStreamed);
    for (size_t i = 0; i < kLines * kLine / kStreamed; ++i) stream_piece(to + i * kStreamed, pieces[i]);
  } else {
    Half halves[kLines * kLine / kHalf];
    for (size_t i = 0; i < kLines * kLine / kHalf; ++i) halves[i] = reinterpret_cast<const Half*>(from)[i];
    for (size_t i = 0; i < kLines * kLine / kHalf; ++i) reinterpret_cast<Half*>(to)[i] = halves[i];
  }
}

// The bytes behind the last whole line of a row that has at least one.
template <bool kStreaming>
GLD_INLINE void copy_tail(const char* from, char* to, size_t width) {
  if constexpr (kStreaming) {
    for (size_t at = width / kLine * kLine; at < width; at += kStreamed) stream_piece(to + at, load_piece(from + at));
  } else {
    std::memcpy(to + width - kLine, from + width - kLine, kLine);
  }
}

// One row of kLines whole lines and a tail.
template <size_t kLines, bool kStreaming>
GLD_INLINE void copy_row(const char* from, char* to, size_t width) {
  constexpr size_t kGrouped = kLines / kGroup * kGroup;
  for (size_t line = 0; line < kGrouped; line += kGroup)
    copy_lines<kGroup, kStreaming>(from + line * kLine, to + line * kLine);
  if constexpr (kLines > kGrouped)
    copy_lines<kLines - kGrouped, kStreaming>(from + kGrouped * kLine, to + kGrouped * kLine);
  if (width > kLines * kLine) copy_tail<kStreaming>(from, to, width);
}

template <size_t kLines, bool kStreaming>
GLD_INLINE void copy_unrolled(const char* const* from, char* const* to, int64_t count, int64_t ahead, size_t width) {
  for (int64_t i = 0; i < count; ++i) {
    const char* next = from[i + ahead];
#pragma GCC unroll 16
    for (size_t line = 0; line < kLines; ++line) __builtin_prefetch(next + line * kLine);
    if (width > kLines * kLine) __builtin_prefetch(next + width - 1);
    copy_row<kLines, kStreaming>(from[i], to[i], width);
  }
}

GLD_INLINE void copy_wide(const char* const* from, char* const* to, int64_t count, int64_t ahead, size_t width) {
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 16
    for (size_t line = 0; line < kUnrolledLines; ++line) __builtin_prefetch(from[i + ahead] + line * kLine);
    const char* row = from[i];
    size_t at = 0;
    for (; at + kGroup * kLine <= width; at += kGroup * kLine) copy_lines<kGroup, false>(row + at, to[i] + at);
    for (; at + kLine <= width; at += kLine) copy_lines<1, false>(row + at, to[i] + at);
    if (at < width) copy_tail<false>(row, to[i], width);
  }
}

// Rows of less than a line.
GLD_INLINE void copy_short(const char* const* from, char* const* to, int64_t count, int64_t ahead, size_t width) {
  for (int64_t i = 0; i < count; ++i) {
    __builtin_prefetch(from[i + ahead]);
    std::memcpy(to[i], from[i], width);
  }
}

template <size_t kWidth, typename Row>
GLD_INLINE void copy_narrow(const Row* rows, int64_t count, int64_t ahead, const char* first, char* to) {
  for (int64_t i = 0; i < count; ++i) {
    __builtin_prefetch(first + rows[i + ahead] * static_cast<int64_t>(kWidth));
    std::memcpy(to + i * kWidth, first + rows[i] * static_cast<int64_t>(kWidth), kWidth);
  }
}

template <typename Row>
GLD_INLINE void copy_narrow_of(const Row* rows, int64_t count, int64_t ahead, const char* first, size_t width,
                               char* to) {
  if (width == 4) return copy_narrow<4>(rows, count, ahead, first, to);
  if (width == 8) return copy_narrow<8>(rows, count, ahead, first, to);
  if (width == 16) return copy_narrow<16>(rows, count, ahead, first, to);
  if (width == 32) return copy_narrow<32>(rows, count, ahead, first, to);
  copy_narrow<64>(rows, count, ahead, first, to);
}

template <bool kStreaming>
GLD_INLINE void copy_by_lines(const char* const* from, char* const* to, int64_t count, int64_t ahead, size_t width) {
  // clang-format off
  switch (width / kLine) {
    case 1: return copy_unrolled<1, kStreaming>(from, to, count, ahead, width);
    case 2: return copy_unrolled<2, kStreaming>(from, to, count, ahead, width);
    case 3: return copy_unrolled<3, kStreaming>(from, to, count, ahead, width);
    case 4: return copy_unrolled<4, kStreaming>(from, to, count, ahead, width);
    case 5: return copy_unrolled<5, kStreaming>(from, to, count, ahead, width);
    case 6: return copy_unrolled<6, kStreaming>(from, to, count, ahead, width);
    case 7: return copy_unrolled<7, kStreaming>(from, to, count, ahead, width);
    case 8: return copy_unrolled<8, kStreaming>(from, to, count, ahead, width);
    case 9: return copy_unrolled<9, kStreaming>(from, to, count, ahead, width);
    case 10: return copy_unrolled<10, kStreaming>(from, to, count, ahead, width);
    case 11: return copy_unrolled<11, kStreaming>(from, to, count, ahead, width);
    case 12: return copy_unrolled<12, kStreaming>(from, to, count, ahead, width);
    case 13: return copy_unrolled<13, kStreaming>(from, to, count, ahead, width);
    case 14: return copy_unrolled<14, kStreaming>(from, to, count, ahead, width);
    case 15: return copy_unrolled<15, kStreaming>(from, to, count, ahead, width);
    default: return copy_unrolled<kUnrolledLines, kStreaming>(from, to, count, ahead, width);
  }
  // clang-format on
}

GLD_SIMD void copy_cached(const char* const* from, char* const* to, int64_t count, int64_t ahead, size_t width) {
  if (width < kLine) return copy_short(from, to, count, ahead, width);
  if (width >= (kUnrolledLines + 1) * kLine) return copy_wide(from, to, count, ahead, width);
  copy_by_lines<false>(from, to, count, ahead, width);
}

template <typename Row>
GLD_INLINE bool find_rows(const Row* rows, int64_t count, const char* first, int64_t num_rows, size_t width,
                          const char** out) {
  bool is_bad = false;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t row = rows[i];  // a negative row is too large
    is_bad |= row >= static_cast<uint64_t>(num_rows);
    out[i] = first + row * width;
  }
  return !is_bad;
}

}  // namespace

GLD_SIMD bool row_addresses(const int64_t* rows, int64_t count, const char* first, int64_t num_rows, size_t width,
                            const char** out) {
  return find_rows(rows, count, first, num_rows, width, out);
}

GLD_SIMD bool row_addresses(const int32_t* rows, int64_t count, const char* first, int64_t num_rows, size_t width,
                            const char** out) {
  return find_rows(rows, count, first, num_rows, width, out);
}

GLD_SIMD void consecutive_addresses(int64_t count, char* first, size_t width, char** out) {
  for (int64_t i = 0; i < count; ++i) out[i] = first + i * width;
}

int64_t rows_ahead(size_t width) {
  return std::clamp<int64_t>(kBytesAhead / std::max<size_t>(width, 1), 1, kMaxRowsAhead);
}

void prefetch_row(const char* row, size_t width) {
  for (size_t at = 0; at < std::min(width, kUnrolledLines * kLine); at += kLine) __builtin_prefetch(row + at);
}

void copy_rows(const char* const* from, char* const* to, int64_t count, int64_t ahead, size_t width, bool streaming) {
  if (!streaming) return copy_cached(from, to, count, ahead, width);
  copy_by_lines<true>(from, to, count, ahead, width);
  end_streaming();
}

bool is_narrow(size_t width) { return width == 4 || width == 8 || width == 16 || width == 32 || width == kLine; }

GLD_SIMD void copy_narrow_rows(const int64_t* rows, int64_t count, int64_t ahead, const char* first, size_t width,
                               char* to) {
  copy_narrow_of(rows, count, ahead, first, width, to);
}

GLD_SIMD void copy_narrow_rows(const int32_t* rows, int64_t count, int64_t ahead, const char* first, size_t width,
                               char* to) {
  copy_narrow_of(rows, count, ahead, first, width, to);
}

bool can_stream(const char* out, int64_t num_rows, size_t width, bool in_order) {
  if (!kCanStream || !in_order || width < 2 * kLine || width > kUnrolledLines * kLine) return false;
  // Measured: rows of whole lines lose a third by it, others (400 bytes) gain a sixth.
  if (width % kLine == 0) return false;
  if (width % kStreamed != 0 || reinterpret_cast<uintptr_t>(out) % kStreamed != 0) return false;
  return num_rows * static_cast<int64_t>(width) >= kSmallestStream;
}

}  // namespace gld

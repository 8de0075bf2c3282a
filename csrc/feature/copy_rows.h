// Copies rows from scattered places, with the rows ahead of the one that is copied on their way to the cache.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gld {

// How many rows ahead cover the latency of memory: about 8 KiB of them, at least 1, at most kMaxRowsAhead.
int64_t rows_ahead(size_t width);
constexpr int64_t kMaxRowsAhead = 128;

// Asks for the first kilobyte of a row; the hardware's own prefetcher follows to what lies behind it.
void prefetch_row(const char* row, size_t width);

// out[i] = first + rows[i] * width. Returns false where a row is outside [0, num_rows); its address is then nonsense.
// Vector writes, as below: single ones would queue behind those of the rows copied before, which wait for memory.
bool row_addresses(const int64_t* rows, int64_t count, const char* first, int64_t num_rows, size_t width,
                   const char** out);
bool row_addresses(const int32_t* rows, int64_t count, const char* first, int64_t num_rows, size_t width,
                   const char** out);

// out[i] = first + i * width.
void consecutive_addresses(int64_t count, char* first, size_t width, char** out);

// to[i] = from[i] for `count` rows of `width` bytes, which do not overlap. from[count, count + ahead) are the rows that
// come next, for prefetching. `streaming` (where can_stream() says so) writes past the caches.
void copy_rows(const char* const* from, char* const* to, int64_t count, int64_t ahead, size_t width, bool streaming);

// Rows of 4, 8, 16, 32 or 64 bytes, such as labels: to[i] = first[rows[i]] for `count` rows in order, without a detour
// over addresses, which would cost as much as such rows. rows[count, count + ahead) come next. Rows must be valid.
bool is_narrow(size_t width);
void copy_narrow_rows(const int64_t* rows, int64_t count, int64_t ahead, const char* first, size_t width, char* to);
void copy_narrow_rows(const int32_t* rows, int64_t count, int64_t ahead, const char* first, size_t width, char* to);

// Whether writing past the caches pays for rows of `width` bytes, `num_rows` of them, at `out`. It saves reading each
// line of the output before it is written, and needs an output too large for the caches, rows in order, so that lines
// are written whole, and a width that suits (measured: 128 bytes to 1 KiB, but not whole lines).
bool can_stream(const char* out, int64_t num_rows, size_t width, bool in_order);

}  // namespace gld

#include "feature/cast_rows.h"

#include <algorithm>

#include "common/simd.h"
#include "feature/cast_element.h"
#include "feature/copy_rows.h"

namespace gld {
namespace {

struct RowsToCast {
  const char* const* from;
  char* const* to;
  int64_t count, ahead;
  size_t columns;
};

template <typename From, typename To>
GLD_INLINE void cast_loop(const RowsToCast& rows) {
  for (int64_t i = 0; i < rows.count; ++i) {
    prefetch_row(rows.from[i + rows.ahead], rows.columns * sizeof(From));
    const From* __restrict from = reinterpret_cast<const From*>(rows.from[i]);
    To* __restrict to = reinterpret_cast<To*>(rows.to[i]);
    for (size_t column = 0; column < rows.columns; ++column) narrow(widen(from[column]), to + column);
  }
}

template <typename From>
GLD_INLINE void cast_from(const RowsToCast& rows, DType to) {
  if (to == kFloat32) return cast_loop<From, float>(rows);
  if (to == kFloat16) return cast_loop<From, Half>(rows);
  if (to == kBfloat16) return cast_loop<From, Bfloat>(rows);
  cast_loop<From, double>(rows);
}

GLD_SIMD void cast(const RowsToCast& rows, DType from, DType to) {
  if (from == kFloat32) return cast_from<float>(rows, to);
  if (from == kFloat16) return cast_from<Half>(rows, to);
  if (from == kBfloat16) return cast_from<Bfloat>(rows, to);
  if (from == kFloat64) return cast_from<double>(rows, to);
  if (from == kInt8) return cast_from<int8_t>(rows, to);
  cast_from<uint8_t>(rows, to);
}

bool is_float(DType dtype) { return dtype == kFloat16 || dtype == kBfloat16 || dtype == kFloat32 || dtype == kFloat64; }

}  // namespace

bool can_cast(DType from, DType to) { return is_float(to) && (is_float(from) || from == kInt8 || from == kUInt8); }

void cast_rows(const char* const* from, char* const* to, int64_t count, int64_t ahead, size_t columns, DType from_dtype,
               DType to_dtype) {
  cast({from, to, count, ahead, columns}, from_dtype, to_dtype);
}

}  // namespace gld

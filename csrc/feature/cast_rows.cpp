#include "feature/cast_rows.h"

#include <algorithm>
#include <cstring>

#include "common/simd.h"
#include "feature/copy_rows.h"

namespace gld {
namespace {

constexpr DType kFloat16{Kind::kFloat, 16}, kBfloat16{Kind::kBfloat, 16};
constexpr DType kFloat32{Kind::kFloat, 32}, kFloat64{Kind::kFloat, 64};
constexpr DType kInt8{Kind::kInt, 8};

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

template <typename To, typename From>
GLD_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// The conversions of 16-bit floats are integer arithmetic without branches (after F. Giesen, "Float->half variants"):
// they vectorise on every machine and round alike on all.
GLD_INLINE float widen(Half half) {
  const uint32_t magnitude = (half.bits & 0x7FFFu) << 13, exponent = magnitude & (0x1Fu << 23);
  const uint32_t normal = magnitude + ((127u - 15u) << 23);
  const uint32_t not_finite = normal + ((128u - 16u) << 23);
  // Subnormal: the bits behind a leading 1, which is subtracted again.
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(normal + (1u << 23)) - bits_as<float>(113u << 23));
  const uint32_t bits = exponent == 0 ? subnormal : exponent == (0x1Fu << 23) ? not_finite : normal;
  return bits_as<float>(bits | (half.bits & 0x8000u) << 16);
}
GLD_INLINE float widen(Bfloat value) { return bits_as<float>(static_cast<uint32_t>(value.bits) << 16); }
GLD_INLINE float widen(float value) { return value; }
GLD_INLINE double widen(double value) { return value; }
GLD_INLINE float widen(int8_t value) { return value; }
GLD_INLINE float widen(uint8_t value) { return value; }

GLD_INLINE void narrow(float value, Half* out) {
  constexpr uint32_t kInfinity = 255u << 23, kTooLarge = (127u + 16u) << 23, kSmallestNormal = 113u << 23;
  constexpr uint32_t kAligner = ((127u - 15u) + (23u - 10u) + 1u) << 23;  // 0.5: its last bit is that of a subnormal
  const uint32_t all = bits_as<uint32_t>(value), magnitude = all & 0x7FFFFFFFu;
  const uint32_t not_finite = magnitude > kInfinity ? 0x7E00u : 0x7C00u;
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + bits_as<float>(kAligner)) - kAligner;
  const uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t bits = magnitude >= kTooLarge ? not_finite : magnitude < kSmallestNormal ? subnormal : normal;
  out->bits = static_cast<uint16_t>(bits | all >> 31 << 15);
}
GLD_INLINE void narrow(float value, Bfloat* out) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  out->bits = static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
}
GLD_INLINE void narrow(float value, float* out) { *out = value; }
GLD_INLINE void narrow(float value, double* out) { *out = value; }
GLD_INLINE void narrow(double value, double* out) { *out = value; }
template <typename To>
GLD_INLINE void narrow(double value, To* out) {
  narrow(static_cast<float>(value), out);
}

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

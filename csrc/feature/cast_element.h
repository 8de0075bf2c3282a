// Casts of single elements, for host and device; see cast_rows.h for the values.
#pragma once
#include <cstdint>
#include <cstring>

#include "common/host_device.h"
#include "common/simd.h"
#include "common/tensor.h"

namespace gld {

constexpr DType kFloat16{Kind::kFloat, 16}, kBfloat16{Kind::kBfloat, 16};
constexpr DType kInt8{Kind::kInt, 8};

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

template <typename To, typename From>
GLD_HOST_DEVICE GLD_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// The conversions of 16-bit floats are integer arithmetic without branches (after F. Giesen, "Float->half variants"):
// they vectorise on every machine and round alike on all.
GLD_HOST_DEVICE GLD_INLINE float widen(Half half) {
  const uint32_t magnitude = (half.bits & 0x7FFFu) << 13, exponent = magnitude & (0x1Fu << 23);
  const uint32_t normal = magnitude + ((127u - 15u) << 23);
  const uint32_t not_finite = normal + ((128u - 16u) << 23);
  // Subnormal: the bits behind a leading 1, which is subtracted again.
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(normal + (1u << 23)) - bits_as<float>(113u << 23));
  const uint32_t bits = exponent == 0 ? subnormal : exponent == (0x1Fu << 23) ? not_finite : normal;
  return bits_as<float>(bits | (half.bits & 0x8000u) << 16);
}
GLD_HOST_DEVICE GLD_INLINE float widen(Bfloat value) { return bits_as<float>(static_cast<uint32_t>(value.bits) << 16); }
GLD_HOST_DEVICE GLD_INLINE float widen(float value) { return value; }
GLD_HOST_DEVICE GLD_INLINE double widen(double value) { return value; }
GLD_HOST_DEVICE GLD_INLINE float widen(int8_t value) { return value; }
GLD_HOST_DEVICE GLD_INLINE float widen(uint8_t value) { return value; }

GLD_HOST_DEVICE GLD_INLINE void narrow(float value, Half* out) {
  constexpr uint32_t kInfinity = 255u << 23, kTooLarge = (127u + 16u) << 23, kSmallestNormal = 113u << 23;
  constexpr uint32_t kAligner = ((127u - 15u) + (23u - 10u) + 1u) << 23;  // 0.5: its last bit is that of a subnormal
  const uint32_t all = bits_as<uint32_t>(value), magnitude = all & 0x7FFFFFFFu;
  const uint32_t not_finite = magnitude > kInfinity ? 0x7E00u : 0x7C00u;
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + bits_as<float>(kAligner)) - kAligner;
  const uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t bits = magnitude >= kTooLarge ? not_finite : magnitude < kSmallestNormal ? subnormal : normal;
  out->bits = static_cast<uint16_t>(bits | all >> 31 << 15);
}
GLD_HOST_DEVICE GLD_INLINE void narrow(float value, Bfloat* out) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  out->bits = static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
}
GLD_HOST_DEVICE GLD_INLINE void narrow(float value, float* out) { *out = value; }
GLD_HOST_DEVICE GLD_INLINE void narrow(float value, double* out) { *out = value; }
GLD_HOST_DEVICE GLD_INLINE void narrow(double value, double* out) { *out = value; }
template <typename To>
GLD_HOST_DEVICE GLD_INLINE void narrow(double value, To* out) {
  narrow(static_cast<float>(value), out);
}

// Element types as kernels take them: a branch that is the same for all threads.
enum class ElementType : uint8_t { kFloat16, kBfloat16, kFloat32, kFloat64, kInt8, kUInt8 };

GLD_HOST_DEVICE inline int element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kFloat64:
      return 8;
    case ElementType::kFloat32:
      return 4;
    case ElementType::kFloat16:
    case ElementType::kBfloat16:
      return 2;
    default:
      return 1;
  }
}

// Of a dtype that can_cast() knows.
inline ElementType element_type_of(DType dtype) {
  if (dtype == kFloat16) return ElementType::kFloat16;
  if (dtype == kBfloat16) return ElementType::kBfloat16;
  if (dtype == kFloat32) return ElementType::kFloat32;
  if (dtype == kFloat64) return ElementType::kFloat64;
  return dtype == kInt8 ? ElementType::kInt8 : ElementType::kUInt8;
}

template <typename From>
GLD_HOST_DEVICE inline void cast_to(From from, char* to, ElementType to_type, int64_t column) {
  switch (to_type) {
    case ElementType::kFloat16:
      return narrow(widen(from), reinterpret_cast<Half*>(to) + column);
    case ElementType::kBfloat16:
      return narrow(widen(from), reinterpret_cast<Bfloat*>(to) + column);
    case ElementType::kFloat64:
      return narrow(widen(from), reinterpret_cast<double*>(to) + column);
    default:
      return narrow(widen(from), reinterpret_cast<float*>(to) + column);
  }
}

// to[column] = from[column], from a type to a floating one.
GLD_HOST_DEVICE inline void cast_element(const char* from, ElementType from_type, char* to, ElementType to_type,
                                         int64_t column) {
  switch (from_type) {
    case ElementType::kFloat16:
      return cast_to(reinterpret_cast<const Half*>(from)[column], to, to_type, column);
    case ElementType::kBfloat16:
      return cast_to(reinterpret_cast<const Bfloat*>(from)[column], to, to_type, column);
    case ElementType::kFloat32:
      return cast_to(reinterpret_cast<const float*>(from)[column], to, to_type, column);
    case ElementType::kFloat64:
      return cast_to(reinterpret_cast<const double*>(from)[column], to, to_type, column);
    case ElementType::kInt8:
      return cast_to(reinterpret_cast<const int8_t*>(from)[column], to, to_type, column);
    case ElementType::kUInt8:
      return cast_to(reinterpret_cast<const uint8_t*>(from)[column], to, to_type, column);
  }
}

}  // namespace gld

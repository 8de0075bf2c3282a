// Edge weights: what is accepted, and the form that draws by weight read.
//
// Draws are exact: each edge comes with a probability proportional to its weight, however far apart the weights of a
// row are and whatever their order. Running sums of floating-point numbers cannot give that, since a sum swallows what
// is small beside it. So a row has a unit, a power of two chosen from all its weights. A weight is a number of whole
// units, which are counted without rounding, and a fraction of one, which a draw looks up where it needs it
// (sampling/weighted_picks.h).
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#include "common/host_device.h"
#include "common/tensor.h"
#include "common/thread_pool.h"

namespace gld {

// Reads weights of any float dtype, for host and device; check_weight_type() has passed them. The branch is the same
// for every edge of a graph.
class WeightReader {
 public:
  WeightReader() = default;
  explicit WeightReader(const Tensor& weights) : data_(weights.data), dtype_(weights.dtype) {}

  GLD_HOST_DEVICE double operator()(int64_t edge) const {
    if (dtype_.bits == 32) return static_cast<double>(static_cast<const float*>(data_)[edge]);
    if (dtype_.bits == 64) return static_cast<const double*>(data_)[edge];
    const uint16_t bits = static_cast<const uint16_t*>(data_)[edge];
    return dtype_.kind == Kind::kBfloat ? from_bfloat(bits) : from_half(bits);
  }

 private:
  GLD_HOST_DEVICE static double from_bfloat(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return static_cast<double>(value);
  }
  GLD_HOST_DEVICE static double from_half(uint16_t bits) {
    const uint64_t sign = static_cast<uint64_t>(bits >> 15) << 63, exponent = (bits >> 10) & 31, digits = bits & 1023;
    if (exponent == 0) return (sign != 0 ? -0x1p-24 : 0x1p-24) * static_cast<double>(digits);
    const uint64_t wide = sign | (exponent == 31 ? 2047 : exponent + 1008) << 52 | digits << 42;
    double value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }

  const void* data_ = nullptr;
  DType dtype_{Kind::kFloat, 64};
};

// A finite number of at least 0, exactly: digits * 2^exponent, digits below 2^53.
struct WeightDigits {
  uint64_t digits;
  int exponent;

  GLD_HOST_DEVICE explicit WeightDigits(double weight) {
    uint64_t bits;
    std::memcpy(&bits, &weight, sizeof(bits));
    const int field = static_cast<int>(bits >> 52 & 2047);
    digits = (bits & ((uint64_t{1} << 52) - 1)) | static_cast<uint64_t>(field > 0) << 52;
    exponent = (field > 0 ? field : 1) - 1075;
  }

  // How many whole units of 2^unit it has; there are fewer than 2^63.
  GLD_HOST_DEVICE uint64_t whole_units(int unit) const {
    const int shift = unit - exponent;
    if (shift <= 0) return digits == 0 ? 0 : digits << -shift;
    return shift < 64 ? digits >> shift : 0;
  }

  // What is left, as a share of a unit in multiples of 2^-64, rounded down.
  GLD_HOST_DEVICE uint64_t rest_of_unit(int unit) const {
    const int shift = unit - exponent;
    if (shift <= 0) return 0;
    if (shift < 64) return digits << (64 - shift);
    return shift < 128 ? digits >> (shift - 64) : 0;
  }
};

// An entry of weight_sums: the number of whole units in the weights of a row up to and with an edge, below 2^52, and
// which unit the row counts in, the same for all its edges. They are packed into a double whose order is that of the
// numbers, because doubles are compared fast everywhere: the fraction's bits are the number, and the exponent's say the
// unit. All bits are 0 in a row without positive weights.
struct UnitSum {
  static constexpr int kFirstUnit = -1035;  // exponent of the unit of field 0, which no row has
  static constexpr int kLastUnit = kFirstUnit + 2046;
  static constexpr uint64_t kNumberMask = (uint64_t{1} << 52) - 1;

  uint64_t bits;

  GLD_HOST_DEVICE explicit UnitSum(double packed) { std::memcpy(&bits, &packed, sizeof(bits)); }
  GLD_HOST_DEVICE UnitSum(int unit, uint64_t number) : bits(static_cast<uint64_t>(unit - kFirstUnit) << 52 | number) {}

  GLD_HOST_DEVICE uint64_t number() const { return bits & kNumberMask; }
  GLD_HOST_DEVICE int unit() const { return static_cast<int>(bits >> 52) + kFirstUnit; }
  GLD_HOST_DEVICE UnitSum with_number(uint64_t number) const {
    UnitSum other = *this;
    other.bits = (bits & ~kNumberMask) | number;
    return other;
  }
  GLD_HOST_DEVICE double packed() const {
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
};

// Throws InvalidArgument unless `weights` is undefined or of a float dtype and one-dimensional with `num_edges`
// entries.
void check_weight_type(const Tensor& weights, int64_t num_edges);

// The same, and every weight is finite and at least 0.
void check_weights(const Tensor& weights, int64_t num_edges);

// (weight_sums, positive_counts) of canonical weights [E], throwing as check_weights() does, InvalidArgument where
// `indptr` does not go from 0 to E, and PartitionFormat where it does not ascend.
//
// weight_sums float64 [E]: a UnitSum per edge. A row's unit is the smallest in which it has fewer than 2^52 of them
// (but none is below 2^-1034), so a function of its weights and not of their order. positive_counts int32 [E]: within
// each row, the number of edges of positive weight up to and with each edge; undefined where all edges are.
std::pair<Tensor, Tensor> sum_weights(const Tensor& indptr, const Tensor& weights, ThreadPool& pool);

}  // namespace gld

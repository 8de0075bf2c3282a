#include "graph/weights.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

namespace gld {
namespace {

constexpr int64_t kRowGrain = 4096;
constexpr int64_t kInt32Limit = std::numeric_limits<int32_t>::max();
constexpr DType kFloat64{Kind::kFloat, 64};

double half_to_double(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  double magnitude = std::ldexp(exponent == 0 ? fraction : 1024 + fraction, exponent == 0 ? -24 : exponent - 25);
  if (exponent == 31) magnitude = fraction != 0 ? std::nan("") : std::numeric_limits<double>::infinity();
  return (bits >> 15) != 0 ? -magnitude : magnitude;
}

double bfloat_to_double(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Calls body(weight_at), which gives a weight as a double.
template <typename Body>
void with_weight_reader(const Tensor& weights, Body&& body) {
  const uint16_t* bits = weights.as<uint16_t>();
  const float* floats = weights.as<float>();
  const double* doubles = weights.as<double>();
  if (weights.dtype == DType{Kind::kFloat, 64}) return body([doubles](int64_t e) { return doubles[e]; });
  if (weights.dtype == DType{Kind::kFloat, 32})
    return body([floats](int64_t e) { return static_cast<double>(floats[e]); });
  if (weights.dtype == DType{Kind::kFloat, 16}) return body([bits](int64_t e) { return half_to_double(bits[e]); });
  if (weights.dtype == DType{Kind::kBfloat, 16}) return body([bits](int64_t e) { return bfloat_to_double(bits[e]); });
  throw InvalidArgument(
      message("edge_weights: expected dtype float16, bfloat16, float32 or float64, got ", to_string(weights.dtype)));
}

Tensor count_positive(const Tensor& indptr, const Tensor& weight_sums, ThreadPool& pool) {
  const int64_t* offsets = indptr.as<int64_t>();
  const double* sums = weight_sums.as<double>();
  const Tensor counts = empty(weight_sums.shape, kInt32);
  pool.parallel_for(indptr.shape[0] - 1, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      if (offsets[v + 1] - offsets[v] >= kInt32Limit)
        throw InvalidArgument(message("edge_weights: row ", v, " has 2^31 edges or more and some of weight 0"));
      double before = 0;
      int32_t count = 0;
      for (int64_t e = offsets[v]; e < offsets[v + 1]; ++e) {
        counts.as<int32_t>()[e] = count += sums[e] > before;
        before = sums[e];
      }
    }
  });
  return counts;
}

}  // namespace

void check_weight_type(const Tensor& weights, int64_t num_edges) {
  if (!weights.defined()) return;
  with_weight_reader(weights, [](auto) {});
  if (weights.shape.size() != 1 || weights.shape[0] != num_edges)
    throw InvalidArgument(message("edge_weights: expected [", num_edges, "], one weight per edge, got ",
                                  weights.numel(), " values in ", weights.shape.size(), " dimensions"));
}

void check_weights(const Tensor& weights, int64_t num_edges) {
  check_weight_type(weights, num_edges);
  if (!weights.defined()) return;
  with_weight_reader(weights, [&](auto weight_at) {
    for (int64_t e = 0; e < num_edges; ++e) {
      const double weight = weight_at(e);
      if (!(weight >= 0) || std::isinf(weight))
        throw InvalidArgument(message("edge_weights[", e, "]: expected a finite number >= 0, got ", weight));
    }
  });
}

std::pair<Tensor, Tensor> sum_weights(const Tensor& indptr, const Tensor& weights, ThreadPool& pool) {
  check_index_vector(indptr, "indptr");
  if (indptr.dtype != kInt64 || indptr.shape[0] < 1) throw InvalidArgument("indptr: expected int64 [rows + 1]");
  const int64_t num_rows = indptr.shape[0] - 1, *offsets = indptr.as<int64_t>();
  const int64_t num_edges = offsets[num_rows];
  check_weights(weights, num_edges);
  const Tensor weight_sums = empty({num_edges}, kFloat64);
  double* sums = weight_sums.as<double>();
  std::atomic<bool> all_positive{true};
  with_weight_reader(weights, [&](auto weight_at) {
    pool.parallel_for(num_rows, kRowGrain, [&](int64_t begin, int64_t end) {
      bool positive = true;
      for (int64_t v = begin; v < end; ++v) {
        double sum = 0;
        for (int64_t e = offsets[v]; e < offsets[v + 1]; ++e) {
          const double before = sum;
          sums[e] = sum += weight_at(e);
          positive &= sum > before;
        }
        if (std::isinf(sum)) throw InvalidArgument(message("edge_weights: the weights of row ", v, " sum to infinity"));
      }
      if (!positive) all_positive = false;
    });
  });
  return {weight_sums, all_positive ? Tensor{} : count_positive(indptr, weight_sums, pool)};
}

}  // namespace gld

#include "graph/weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "graph/row_offsets.h"

namespace gld {
namespace {

constexpr int64_t kRowGrain = 4096;
constexpr int64_t kInt32Limit = std::numeric_limits<int32_t>::max();
constexpr int kSumBits = 52;

int bit_length(unsigned __int128 number) {
  const uint64_t high = static_cast<uint64_t>(number >> 64), low = static_cast<uint64_t>(number);
  if (high != 0) return 128 - __builtin_clzll(high);
  return low != 0 ? 64 - __builtin_clzll(low) : 0;
}

// The exponent of the unit of a row whose largest weight, a positive one, is `largest`.
int unit_of_row(const WeightReader& weight_at, int64_t begin, int64_t end, double largest) {
  const WeightDigits top(largest);
  const int fine = top.exponent + bit_length(top.digits) - 63;  // in which the largest has 63 bits
  unsigned __int128 sum = 0;
  for (int64_t e = begin; e < end; ++e) sum += WeightDigits(weight_at(e)).whole_units(fine);
  // Units that are 2^k times as large have at most sum / 2^k wholes.
  return std::max(fine + bit_length(sum) - kSumBits, UnitSum::kFirstUnit + 1);
}

// Writes the sums of one row; gives whether all weights are positive.
bool sum_row(const WeightReader& weight_at, int64_t begin, int64_t end, double* sums) {
  double largest = 0;
  bool all_positive = true;
  for (int64_t e = begin; e < end; ++e) {
    const double weight = weight_at(e);
    all_positive &= weight > 0;
    largest = weight > largest ? weight : largest;
  }
  if (!(largest > 0)) {
    std::fill(sums + begin, sums + end, 0.0);
    return all_positive;
  }
  const int unit = unit_of_row(weight_at, begin, end, largest);
  if (unit > UnitSum::kLastUnit)
    throw InvalidArgument(message("edge_weights: a row of ", end - begin, " edges has a weight of ", largest,
                                  ", expected smaller weights in so long a row"));
  uint64_t sum = 0;
  for (int64_t e = begin; e < end; ++e) {
    sum += WeightDigits(weight_at(e)).whole_units(unit);
    sums[e] = UnitSum(unit, sum).packed();
  }
  return all_positive;
}

Tensor count_positive(const Tensor& indptr, const WeightReader& weight_at, int64_t num_edges, ThreadPool& pool) {
  const int64_t* offsets = indptr.as<int64_t>();
  const Tensor counts = empty({num_edges}, kInt32);
  pool.parallel_for(indptr.shape[0] - 1, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      if (offsets[v + 1] - offsets[v] >= kInt32Limit)
        throw InvalidArgument(message("edge_weights: row ", v, " has 2^31 edges or more and some of weight 0"));
      int32_t count = 0;
      for (int64_t e = offsets[v]; e < offsets[v + 1]; ++e) counts.as<int32_t>()[e] = count += weight_at(e) > 0;
    }
  });
  return counts;
}

// The number of edges of rows that lie one behind the other.
int64_t checked_end(const Tensor& indptr) {
  check_index_vector(indptr, "indptr");
  if (indptr.dtype != kInt64 || indptr.shape[0] < 1) throw InvalidArgument("indptr: expected int64 [rows + 1]");
  const int64_t num_rows = indptr.shape[0] - 1, *offsets = indptr.as<int64_t>();
  if (offsets[0] != 0) throw InvalidArgument(message("indptr: expected to start at 0, got ", offsets[0]));
  for (int64_t v = 0; v < num_rows; ++v)
    if (offsets[v] > offsets[v + 1] || offsets[v + 1] > offsets[num_rows]) refuse_row(offsets, v, offsets[num_rows]);
  return offsets[num_rows];
}

}  // namespace

void check_weight_type(const Tensor& weights, int64_t num_edges) {
  if (!weights.defined()) return;
  const DType dtype = weights.dtype;
  const bool is_float = dtype.kind == Kind::kFloat && (dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64);
  if (!is_float && dtype != DType{Kind::kBfloat, 16})
    throw InvalidArgument(
        message("edge_weights: expected dtype float16, bfloat16, float32 or float64, got ", to_string(dtype)));
  if (weights.shape.size() != 1 || weights.shape[0] != num_edges)
    throw InvalidArgument(message("edge_weights: expected [", num_edges, "], one weight per edge, got ",
                                  weights.numel(), " values in ", weights.shape.size(), " dimensions"));
}

void check_weights(const Tensor& weights, int64_t num_edges) {
  check_weight_type(weights, num_edges);
  if (!weights.defined()) return;
  const WeightReader weight_at(weights);
  for (int64_t e = 0; e < num_edges; ++e) {
    const double weight = weight_at(e);
    if (!(weight >= 0) || std::isinf(weight))
      throw InvalidArgument(message("edge_weights[", e, "]: expected a finite number >= 0, got ", weight));
  }
}

std::pair<Tensor, Tensor> sum_weights(const Tensor& indptr, const Tensor& weights, ThreadPool& pool) {
  const int64_t num_edges = checked_end(indptr), *offsets = indptr.as<int64_t>();
  check_weights(weights, num_edges);
  const Tensor weight_sums = empty({num_edges}, kFloat64);
  const WeightReader weight_at(weights);
  std::atomic<bool> all_positive{true};
  pool.parallel_for(indptr.shape[0] - 1, kRowGrain, [&](int64_t begin, int64_t end) {
    bool positive = true;
    for (int64_t v = begin; v < end; ++v)
      positive &= sum_row(weight_at, offsets[v], offsets[v + 1], weight_sums.as<double>());
    if (!positive) all_positive = false;
  });
  return {weight_sums, all_positive ? Tensor{} : count_positive(indptr, weight_at, num_edges, pool)};
}

}  // namespace gld

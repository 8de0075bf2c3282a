#include "routing/narrowed.h"

#include <algorithm>
#include <limits>

namespace gld {
namespace {

template <typename Narrow>
bool fits(const Tensor& values) {
  const int64_t* from = values.as<int64_t>();
  const int64_t least = std::numeric_limits<Narrow>::min(), most = std::numeric_limits<Narrow>::max();
  bool is_outside = false;  // without a branch, so that it is one pass of vector instructions
  for (int64_t i = 0; i < values.numel(); ++i) is_outside |= from[i] < least || from[i] > most;
  return !is_outside;
}

template <typename Narrow>
Tensor narrowed(const Tensor& values, DType dtype) {
  Tensor out = empty({values.numel()}, dtype);
  const int64_t* from = values.as<int64_t>();
  std::copy(from, from + values.numel(), out.as<Narrow>());
  return out;
}

}  // namespace

Tensor narrowed_ids(const Tensor& ids) {
  check_int64_vector(ids, ids.numel(), "ids");
  return fits<int32_t>(ids) ? narrowed<int32_t>(ids, kInt32) : Tensor();
}

Tensor narrowed_counts(const Tensor& counts) {
  check_int64_vector(counts, counts.numel(), "counts");
  if (fits<uint8_t>(counts)) return narrowed<uint8_t>(counts, kUInt8);
  return fits<int32_t>(counts) ? narrowed<int32_t>(counts, kInt32) : Tensor();
}

}  // namespace gld

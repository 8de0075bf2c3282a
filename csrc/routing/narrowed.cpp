#include "routing/narrowed.h"

#include "common/simd.h"

namespace gld {
namespace {

// False where some value does not fit; without a branch, so that it is one pass of vector instructions.
template <typename Narrow>
GLD_INLINE bool copy_narrowed(const int64_t* from, int64_t count, Narrow* out) {
  int64_t changed = 0;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<Narrow>(from[i]);
    changed |= out[i] ^ from[i];
  }
  return changed == 0;
}

GLD_SIMD bool narrow(const int64_t* from, int64_t count, int32_t* out) { return copy_narrowed(from, count, out); }
GLD_SIMD bool narrow(const int64_t* from, int64_t count, uint8_t* out) { return copy_narrowed(from, count, out); }

// Undefined where not all fit.
template <typename Narrow>
Tensor narrowed(const Tensor& values, DType dtype) {
  Tensor out = empty({values.numel()}, dtype);
  return narrow(values.as<int64_t>(), values.numel(), out.as<Narrow>()) ? out : Tensor();
}

}  // namespace

Tensor narrowed_ids(const Tensor& ids) {
  check_int64_vector(ids, ids.numel(), "ids");
  return narrowed<int32_t>(ids, kInt32);
}

Tensor narrowed_counts(const Tensor& counts) {
  check_int64_vector(counts, counts.numel(), "counts");
  const Tensor bytes = narrowed<uint8_t>(counts, kUInt8);
  return bytes.defined() ? bytes : narrowed<int32_t>(counts, kInt32);
}

}  // namespace gld

#include "graph/row_offsets.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "common/error.h"
#include "common/simd.h"

namespace gld {
namespace {

constexpr char kDamaged[] = "; the files of the graph are damaged (`graphlearn-dist verify` reads them all)";

// Whether some id is outside [0, last]: the sign of it or of its distance to `last` says so, and signs are collected
// without a branch.
template <typename Id>
GLD_INLINE bool any_outside(const Id* ids, int64_t count, Id last) {
  using Bits = std::make_unsigned_t<Id>;
  Bits signs = 0;
  for (int64_t i = 0; i < count; ++i)
    signs |= static_cast<Bits>(ids[i]) | (static_cast<Bits>(last) - static_cast<Bits>(ids[i]));
  return static_cast<Id>(signs) < 0;
}

GLD_SIMD bool outside(const int32_t* ids, int64_t count, int32_t last) { return any_outside(ids, count, last); }
GLD_SIMD bool outside(const int64_t* ids, int64_t count, int64_t last) { return any_outside(ids, count, last); }

template <typename Id>
Id last_of(int64_t num_nodes) {
  return static_cast<Id>(std::min<int64_t>(num_nodes - 1, std::numeric_limits<Id>::max()));
}

template <typename Id>
void check(const Id* ids, int64_t count, int64_t num_cols) {
  const Id last = last_of<Id>(num_cols);
  if (!outside(ids, count, last)) return;
  const Id* bad = std::find_if(ids, ids + count, [last](Id id) { return id < 0 || id > last; });
  throw UnknownId(
      message("indices: neighbor id ", static_cast<int64_t>(*bad), " is outside [0, ", num_cols, ")", kDamaged));
}

}  // namespace

void refuse_row(const int64_t* indptr, int64_t row, int64_t num_edges) {
  throw PartitionFormat(message("indptr[", row, "], indptr[", row + 1, "]: expected ascending offsets within ",
                                num_edges, " edges, got ", indptr[row], " and ", indptr[row + 1], kDamaged));
}

void check_neighbors(const int32_t* ids, int64_t count, int64_t num_cols) { check(ids, count, num_cols); }
void check_neighbors(const int64_t* ids, int64_t count, int64_t num_cols) { check(ids, count, num_cols); }

bool are_nodes(const int32_t* ids, int64_t count, int64_t num_nodes) {
  return !outside(ids, count, last_of<int32_t>(num_nodes));
}
bool are_nodes(const int64_t* ids, int64_t count, int64_t num_nodes) { return !outside(ids, count, num_nodes - 1); }

Tensor degrees_of(const Csr& csr, const Tensor& rows) {
  Tensor degrees = empty({rows.numel()}, kInt64);
  const RowOffsets row_at(csr);
  for (int64_t i = 0; i < rows.numel(); ++i) degrees.as<int64_t>()[i] = row_at[rows.as<int64_t>()[i]].size();
  return degrees;
}

}  // namespace gld

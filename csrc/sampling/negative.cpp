#include "sampling/negative.h"

#include <algorithm>

#include "graph/row_offsets.h"

namespace gld {
namespace {

constexpr int64_t kPairGrain = 512;
constexpr int64_t kRowsAhead = 16;

template <typename Row, typename Col, typename Index>
struct HasEdgesKernel {
  const Csr& csr;
  const Row* rows;
  const Col* cols;
  const bool ascending;

  void run(int64_t begin, int64_t end, uint8_t* out) const {
    const RowOffsets row_at(csr);
    const Index* indices = csr.indices.as<Index>();
    const int64_t num_rows = csr.num_rows();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = rows[i], col = cols[i];
      if (row < 0 || row >= num_rows)
        throw UnknownId(message("rows[", i, "]: row ", row, " is outside [0, ", num_rows, ")"));
      if (col < 0 || col >= csr.num_cols)
        throw UnknownId(message("cols[", i, "]: node id ", col, " is outside [0, ", csr.num_cols, ")"));
      if (i + kRowsAhead < end && rows[i + kRowsAhead] >= 0 && rows[i + kRowsAhead] < num_rows)
        row_at.prefetch(rows[i + kRowsAhead]);
      const RowSpan span = row_at[row];
      const Index* first = indices + span.begin;
      const Index* last = indices + span.end;
      const auto below = [](Index neighbor, int64_t id) { return static_cast<int64_t>(neighbor) < id; };
      const auto is_col = [col](Index neighbor) { return static_cast<int64_t>(neighbor) == col; };
      const Index* found = ascending ? std::lower_bound(first, last, col, below) : std::find_if(first, last, is_col);
      out[i] = found != last && is_col(*found);
    }
  }
};

void check_id_weights(const Tensor& weights, const Tensor& sums, int64_t bound) {
  check_weight_type(weights, bound);
  check_vector(sums, DType{Kind::kFloat, 64}, bound, "sums");
  if (!(sums.as<double>()[bound - 1] > 0)) throw InvalidArgument("weights: expected a positive one, got none");
}

}  // namespace

Tensor has_edges(const Csr& csr, const Tensor& rows, const Tensor& cols, ThreadPool& pool) {
  check_index_vector(rows, "rows");
  check_index_vector(cols, "cols");
  const int64_t count = rows.shape[0];
  if (cols.shape[0] != count)
    throw InvalidArgument(message("cols: expected as many entries as rows, ", count, ", got ", cols.shape[0]));
  Tensor out = empty({count}, kUInt8);
  dispatch_index(rows.dtype, "rows", [&](auto row_tag) {
    dispatch_index(cols.dtype, "cols", [&](auto col_tag) {
      dispatch_index(csr.indices.dtype, "indices", [&](auto index_tag) {
        using Row = decltype(row_tag);
        using Col = decltype(col_tag);
        const HasEdgesKernel<Row, Col, decltype(index_tag)> kernel{csr, rows.as<Row>(), cols.as<Col>(),
                                                                   csr.sorted_by_neighbor()};
        pool.parallel_for(count, kPairGrain,
                          [&](int64_t begin, int64_t end) { kernel.run(begin, end, out.as<uint8_t>()); });
      });
    });
  });
  return out;
}

Tensor random_ids(uint64_t key, const Tensor& positions, int64_t bound, const Tensor& weights, const Tensor& sums) {
  check_index_vector(positions, "positions");
  if (positions.dtype != kInt64) throw InvalidArgument("positions: expected dtype int64, got int32");
  const int64_t count = positions.shape[0];
  if (bound < 0 || (bound == 0 && count > 0))
    throw InvalidArgument(message("bound: expected at least 1 id to choose from, got ", bound));
  if (weights.defined() != sums.defined()) throw InvalidArgument("weights, sums: expected both or none");
  if (weights.defined() && bound > 0) check_id_weights(weights, sums, bound);
  Tensor out = empty({count}, kInt64);
  int64_t* ids = out.as<int64_t>();
  const int64_t* at = positions.as<int64_t>();
  const IdWeights by{sums.as<double>(), WeightReader(weights)};
  for (int64_t i = 0; i < count; ++i) ids[i] = random_id(key, at[i], bound, by);
  return out;
}

}  // namespace gld

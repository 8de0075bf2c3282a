#include "graph/csr.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

namespace gld {
namespace {

constexpr int64_t kInt32Limit = std::numeric_limits<int32_t>::max();
constexpr int64_t kRowGrain = 4096;

DType narrowest(int64_t largest) { return largest < kInt32Limit ? kInt32 : kInt64; }

template <typename T>
void check_ids(const T* ids, int64_t count, int64_t limit, const char* name) {
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= limit)
      throw UnknownId(message(name, "[", i, "]: node id ", ids[i], " is outside [0, ", limit, ")"));
}

// Sorts one row by (neighbor, edge id); rows that are in order already, the common case, cost one scan.
template <typename Index, typename Edge>
void sort_row(Index* indices, Edge* edges, int64_t degree, std::vector<std::pair<Index, Edge>>& scratch) {
  bool sorted = true;
  for (int64_t i = 1; i < degree && sorted; ++i)
    sorted = indices[i - 1] < indices[i] || (indices[i - 1] == indices[i] && edges[i - 1] <= edges[i]);
  if (sorted) return;
  scratch.resize(degree);
  for (int64_t i = 0; i < degree; ++i) scratch[i] = {indices[i], edges[i]};
  std::sort(scratch.begin(), scratch.end());
  for (int64_t i = 0; i < degree; ++i) std::tie(indices[i], edges[i]) = scratch[i];
}

template <typename Row, typename Col, typename Index, typename Edge, typename EdgeOf>
void fill(const Row* row, const Col* col, EdgeOf edge_of, int64_t num_edges, const Csr& csr, ThreadPool& pool) {
  int64_t* indptr = csr.indptr.as<int64_t>();
  Index* indices = csr.indices.as<Index>();
  Edge* edges = csr.edge_ids.as<Edge>();
  const int64_t num_rows = csr.num_rows();
  std::memset(indptr, 0, (num_rows + 1) * sizeof(int64_t));
  for (int64_t e = 0; e < num_edges; ++e) ++indptr[row[e] + 1];
  for (int64_t v = 0; v < num_rows; ++v) indptr[v + 1] += indptr[v];
  std::vector<int64_t> next(indptr, indptr + num_rows);
  for (int64_t e = 0; e < num_edges; ++e) {
    const int64_t slot = next[row[e]]++;
    indices[slot] = static_cast<Index>(col[e]);
    edges[slot] = static_cast<Edge>(edge_of(e));
  }
  pool.parallel_for(num_rows, kRowGrain, [&](int64_t begin, int64_t end) {
    std::vector<std::pair<Index, Edge>> scratch;
    for (int64_t v = begin; v < end; ++v)
      sort_row(indices + indptr[v], edges + indptr[v], indptr[v + 1] - indptr[v], scratch);
  });
}

int64_t largest_edge_id(const Tensor& edge_ids, int64_t num_edges) {
  if (!edge_ids.defined()) return num_edges;
  int64_t largest = 0;
  dispatch_index(edge_ids.dtype, "edge_ids", [&](auto tag) {
    const auto* ids = edge_ids.as<decltype(tag)>();
    for (int64_t e = 0; e < num_edges; ++e) {
      if (ids[e] < 0) throw UnknownId(message("edge_ids[", e, "]: edge id ", ids[e], " is negative"));
      largest = std::max<int64_t>(largest, ids[e]);
    }
  });
  return largest;
}

// Where the edge ids of a CSR are read from: an array, or the position itself.
template <typename Body>
void with_edge_reader(const Tensor& edge_ids, Body&& body) {
  if (!edge_ids.defined()) return body([](int64_t position) { return position; });
  dispatch_index(edge_ids.dtype, "edge_ids", [&](auto tag) {
    const auto* ids = edge_ids.as<decltype(tag)>();
    body([ids](int64_t position) { return static_cast<int64_t>(ids[position]); });
  });
}

}  // namespace

Csr make_csr(Tensor indptr, Tensor indices, Tensor edge_ids, int64_t num_cols) {
  check_index_vector(indptr, "indptr");
  check_index_vector(indices, "indices");
  if (indptr.dtype != kInt64) throw InvalidArgument("indptr: expected dtype int64, got int32");
  if (indptr.shape[0] < 1) throw InvalidArgument("indptr: expected at least one entry, got none");
  const int64_t* offsets = indptr.as<int64_t>();
  const int64_t num_edges = indices.shape[0];
  if (offsets[0] != 0 || offsets[indptr.shape[0] - 1] != num_edges)
    throw InvalidArgument(message("indptr: expected to run from 0 to the number of edges ", num_edges, ", got ",
                                  offsets[0], " to ", offsets[indptr.shape[0] - 1]));
  if (edge_ids.defined()) {
    check_index_vector(edge_ids, "edge_ids");
    if (edge_ids.shape[0] != num_edges)
      throw InvalidArgument(
          message("edge_ids: expected one id for each of ", num_edges, " edges, got ", edge_ids.shape[0]));
  }
  if (num_cols < 0) throw InvalidArgument(message("num_cols: expected at least 0, got ", num_cols));
  return Csr{std::move(indptr), std::move(indices), std::move(edge_ids), num_cols, {}, {}};
}

void validate_csr(const Csr& csr, ThreadPool& pool) {
  const int64_t* indptr = csr.indptr.as<int64_t>();
  for (int64_t v = 0; v < csr.num_rows(); ++v)
    if (indptr[v] > indptr[v + 1])
      throw InvalidArgument(
          message("indptr: expected ascending offsets, got ", indptr[v], " before ", indptr[v + 1], " at row ", v));
  dispatch_index(csr.indices.dtype, "indices", [&](auto tag) {
    const auto* indices = csr.indices.as<decltype(tag)>();
    check_ids(indices, csr.num_edges(), csr.num_cols, "indices");
    with_edge_reader(csr.edge_ids, [&](auto edge_of) {
      pool.parallel_for(csr.num_rows(), kRowGrain, [&](int64_t begin, int64_t end) {
        for (int64_t v = begin; v < end; ++v)
          for (int64_t e = indptr[v] + 1; e < indptr[v + 1]; ++e)
            if (indices[e - 1] > indices[e] || (indices[e - 1] == indices[e] && edge_of(e - 1) > edge_of(e)))
              throw InvalidArgument(message("indices: row ", v, " is not sorted by (neighbor id, edge id)"));
      });
    });
  });
}

Csr build_csr(const Tensor& row, const Tensor& col, const Tensor& edge_ids, int64_t num_rows, int64_t num_cols,
              ThreadPool& pool) {
  check_index_vector(row, "row");
  check_index_vector(col, "col");
  const int64_t num_edges = row.shape[0];
  if (col.shape[0] != num_edges)
    throw InvalidArgument(message("col: expected as many entries as row, ", num_edges, ", got ", col.shape[0]));
  if (num_rows < 0 || num_cols < 0)
    throw InvalidArgument(message("num_rows, num_cols: expected at least 0, got ", num_rows, ", ", num_cols));
  if (edge_ids.defined()) {
    check_index_vector(edge_ids, "edge_ids");
    if (edge_ids.shape[0] != num_edges)
      throw InvalidArgument(
          message("edge_ids: expected one id for each of ", num_edges, " edges, got ", edge_ids.shape[0]));
  }
  Csr csr;
  csr.num_cols = num_cols;
  csr.indptr = empty({num_rows + 1}, kInt64);
  csr.indices = empty({num_edges}, narrowest(num_cols));
  csr.edge_ids = empty({num_edges}, narrowest(largest_edge_id(edge_ids, num_edges)));
  dispatch_index(row.dtype, "row", [&](auto row_tag) {
    dispatch_index(col.dtype, "col", [&](auto col_tag) {
      const auto* rows = row.as<decltype(row_tag)>();
      const auto* cols = col.as<decltype(col_tag)>();
      check_ids(rows, num_edges, num_rows, "row");
      check_ids(cols, num_edges, num_cols, "col");
      dispatch_index(csr.indices.dtype, "indices", [&](auto index_tag) {
        dispatch_index(csr.edge_ids.dtype, "edge_ids", [&](auto edge_tag) {
          with_edge_reader(edge_ids, [&](auto edge_of) {
            fill<decltype(row_tag), decltype(col_tag), decltype(index_tag), decltype(edge_tag)>(rows, cols, edge_of,
                                                                                                num_edges, csr, pool);
          });
        });
      });
    });
  });
  return csr;
}

Csr take_rows(const Csr& csr, const Tensor& rows, ThreadPool& pool) {
  check_index_vector(rows, "rows");
  const int64_t count = rows.shape[0];
  const int64_t* indptr = csr.indptr.as<int64_t>();
  Csr out;
  out.num_cols = csr.num_cols;
  out.indptr = empty({count + 1}, kInt64);
  int64_t* out_indptr = out.indptr.as<int64_t>();
  out_indptr[0] = 0;
  dispatch_index(rows.dtype, "rows", [&](auto tag) {
    const auto* ids = rows.as<decltype(tag)>();
    check_ids(ids, count, csr.num_rows(), "rows");
    for (int64_t i = 0; i < count; ++i) out_indptr[i + 1] = out_indptr[i] + indptr[ids[i] + 1] - indptr[ids[i]];
    const int64_t num_edges = out_indptr[count];
    out.indices = empty({num_edges}, csr.indices.dtype);
    out.edge_ids = empty({num_edges}, csr.edge_ids.defined() ? csr.edge_ids.dtype : narrowest(csr.num_edges()));
    dispatch_index(csr.indices.dtype, "indices", [&](auto index_tag) {
      using Index = decltype(index_tag);
      dispatch_index(out.edge_ids.dtype, "edge_ids", [&](auto edge_tag) {
        using Edge = decltype(edge_tag);
        with_edge_reader(csr.edge_ids, [&](auto edge_of) {
          pool.parallel_for(count, kRowGrain, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              const int64_t source = indptr[ids[i]], degree = indptr[ids[i] + 1] - source;
              std::copy_n(csr.indices.as<Index>() + source, degree, out.indices.as<Index>() + out_indptr[i]);
              Edge* edges = out.edge_ids.as<Edge>() + out_indptr[i];
              for (int64_t e = 0; e < degree; ++e) edges[e] = static_cast<Edge>(edge_of(source + e));
            }
          });
        });
      });
    });
  });
  return out;
}

}  // namespace gld

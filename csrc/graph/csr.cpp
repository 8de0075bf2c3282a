#include "graph/csr.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/row_offsets.h"
#include "graph/weights.h"

namespace gld {
namespace {

constexpr int64_t kInt32Limit = std::numeric_limits<int32_t>::max();
constexpr int64_t kRowGrain = 4096;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

// One edge of a row that is sorted together with what it carries.
struct EdgeRecord {
  int64_t time, neighbor, edge_id;
  uint64_t weight;  // its bits; they decide between edges that share an id, so that the input's order never does
  bool operator<(const EdgeRecord& other) const {
    return std::tie(time, neighbor, edge_id, weight) <
           std::tie(other.time, other.neighbor, other.edge_id, other.weight);
  }
};

// Copies values of 2, 4 or 8 bytes without looking at what they are.
struct Bits {
  char* data;
  size_t size;
  uint64_t load(int64_t i) const {
    uint64_t bits = 0;
    std::memcpy(&bits, data + i * size, size);
    return bits;
  }
  void store(int64_t i, uint64_t bits) const { std::memcpy(data + i * size, &bits, size); }
};

Bits bits_of(const Tensor& tensor) {
  if (!tensor.defined()) return {nullptr, 0};
  return {static_cast<char*>(tensor.data), tensor.dtype.size()};
}

// Sorts one row of a graph with times or weights by (time, neighbor, edge id).
template <typename Index, typename Edge>
void sort_records(const Csr& csr, int64_t begin, int64_t end, std::vector<EdgeRecord>& scratch) {
  Index* indices = csr.indices.as<Index>();
  Edge* edges = csr.edge_ids.as<Edge>();
  int64_t* times = csr.times.defined() ? csr.times.as<int64_t>() : nullptr;
  const Bits weights = bits_of(csr.weights);
  scratch.clear();
  for (int64_t e = begin; e < end; ++e)
    scratch.push_back(
        {times != nullptr ? times[e] : 0, indices[e], edges[e], weights.data != nullptr ? weights.load(e) : 0});
  if (std::is_sorted(scratch.begin(), scratch.end())) return;
  std::sort(scratch.begin(), scratch.end());
  for (int64_t e = begin; e < end; ++e) {
    const EdgeRecord& record = scratch[e - begin];
    indices[e] = static_cast<Index>(record.neighbor);
    edges[e] = static_cast<Edge>(record.edge_id);
    if (times != nullptr) times[e] = record.time;
    if (weights.data != nullptr) weights.store(e, record.weight);
  }
}

template <typename Index, typename Edge>
void sort_rows(const Csr& csr, ThreadPool& pool) {
  const int64_t* indptr = csr.indptr.as<int64_t>();
  const bool with_data = csr.times.defined() || csr.weights.defined();
  pool.parallel_for(csr.num_rows(), kRowGrain, [&](int64_t begin, int64_t end) {
    std::vector<std::pair<Index, Edge>> scratch;
    std::vector<EdgeRecord> records;
    for (int64_t v = begin; v < end; ++v) {
      if (with_data)
        sort_records<Index, Edge>(csr, indptr[v], indptr[v + 1], records);
      else
        sort_row(csr.indices.as<Index>() + indptr[v], csr.edge_ids.as<Edge>() + indptr[v], indptr[v + 1] - indptr[v],
                 scratch);
    }
  });
}

// Times of either dtype, as int64.
struct TimeReader {
  const int32_t* narrow = nullptr;
  const int64_t* wide = nullptr;
  explicit TimeReader(const Tensor& times) {
    if (!times.defined()) return;
    if (times.dtype == kInt32)
      narrow = times.as<int32_t>();
    else
      wide = times.as<int64_t>();
  }
  int64_t operator()(int64_t e) const { return narrow != nullptr ? narrow[e] : wide[e]; }
};

template <typename Row, typename Col, typename Index, typename Edge, typename EdgeOf>
void fill(const Row* row, const Col* col, EdgeOf edge_of, const EdgeData& data, int64_t num_edges, const Csr& csr,
          ThreadPool& pool) {
  int64_t* indptr = csr.indptr.as<int64_t>();
  Index* indices = csr.indices.as<Index>();
  Edge* edges = csr.edge_ids.as<Edge>();
  const int64_t num_rows = csr.num_rows();
  const TimeReader time_of(data.times);
  const Bits weights_in = bits_of(data.weights), weights = bits_of(csr.weights);
  int64_t* times = csr.times.defined() ? csr.times.as<int64_t>() : nullptr;
  std::memset(indptr, 0, (num_rows + 1) * sizeof(int64_t));
  for (int64_t e = 0; e < num_edges; ++e) ++indptr[row[e] + 1];
  for (int64_t v = 0; v < num_rows; ++v) indptr[v + 1] += indptr[v];
  std::vector<int64_t> next(indptr, indptr + num_rows);
  for (int64_t e = 0; e < num_edges; ++e) {
    const int64_t slot = next[row[e]]++;
    indices[slot] = static_cast<Index>(col[e]);
    edges[slot] = static_cast<Edge>(edge_of(e));
    if (times != nullptr) times[slot] = time_of(e);
    if (weights.data != nullptr) weights.store(slot, weights_in.load(e));
  }
  sort_rows<Index, Edge>(csr, pool);
}

// One entry per edge, of the dtype `dtype` or, where `or_narrow`, int32.
void check_per_edge(const Tensor& tensor, int64_t num_edges, DType dtype, bool or_narrow, const char* name) {
  if (!tensor.defined()) return;
  if (tensor.shape.size() != 1 || tensor.shape[0] != num_edges)
    throw InvalidArgument(message(name, ": expected [", num_edges, "], one entry per edge, got ", tensor.numel(),
                                  " values in ", tensor.shape.size(), " dimensions"));
  if (tensor.dtype != dtype && !(or_narrow && tensor.dtype == kInt32))
    throw InvalidArgument(message(name, ": expected dtype ", to_string(dtype), or_narrow ? " or int32" : "", ", got ",
                                  to_string(tensor.dtype)));
}

void check_edge_ids(const Tensor& edge_ids, int64_t num_edges) {
  if (!edge_ids.defined()) return;
  check_index_vector(edge_ids, "edge_ids");
  if (edge_ids.shape[0] != num_edges)
    throw InvalidArgument(
        message("edge_ids: expected one id for each of ", num_edges, " edges, got ", edge_ids.shape[0]));
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

void validate_sums(const Csr& csr) {
  const int64_t* indptr = csr.indptr.as<int64_t>();
  const double* sums = csr.weight_sums.as<double>();
  for (int64_t v = 0; v < csr.num_rows(); ++v)
    for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e)
      if (UnitSum(sums[e]).unit() != UnitSum(sums[indptr[v]]).unit() || !(sums[e] >= 0 && sums[e] < kInfinity) ||
          (e > indptr[v] && sums[e] < sums[e - 1]))
        throw InvalidArgument(
            message("weight_sums: row ", v, " holds ", sums[e], ", expected ascending sums in one unit (sum_weights)"));
}

}  // namespace

void check_csr_arrays(const Csr& parts) {
  check_index_vector(parts.indptr, "indptr");
  check_index_vector(parts.indices, "indices");
  if (parts.indptr.dtype != kInt64) throw InvalidArgument("indptr: expected dtype int64, got int32");
  if (parts.indptr.shape[0] < 1) throw InvalidArgument("indptr: expected at least one entry, got none");
  if (parts.num_cols < 0) throw InvalidArgument(message("num_cols: expected at least 0, got ", parts.num_cols));
  const int64_t num_edges = parts.num_edges();
  check_edge_ids(parts.edge_ids, num_edges);
  check_per_edge(parts.times, num_edges, kInt64, false, "times");
  check_per_edge(parts.weight_sums, num_edges, kFloat64, false, "weight_sums");
  check_per_edge(parts.positive_counts, num_edges, kInt32, false, "positive_counts");
  check_weight_type(parts.weights, num_edges);
}

Csr make_csr(Csr parts) {
  check_csr_arrays(parts);
  const int64_t* offsets = parts.indptr.as<int64_t>();
  const int64_t num_edges = parts.num_edges(), last = offsets[parts.num_rows()];
  if (offsets[0] != 0 || last != num_edges)
    throw InvalidArgument(message("indptr: expected to run from 0 to the number of edges ", num_edges, ", got ",
                                  offsets[0], " to ", last));
  return parts;
}

void validate_csr(const Csr& csr, ThreadPool& pool) {
  const int64_t* indptr = csr.indptr.as<int64_t>();
  const int64_t* times = csr.times.defined() ? csr.times.as<int64_t>() : nullptr;
  for (int64_t v = 0; v < csr.num_rows(); ++v)
    if (indptr[v] > indptr[v + 1])
      throw InvalidArgument(
          message("indptr: expected ascending offsets, got ", indptr[v], " before ", indptr[v + 1], " at row ", v));
  dispatch_index(csr.indices.dtype, "indices", [&](auto tag) {
    const auto* indices = csr.indices.as<decltype(tag)>();
    check_ids(indices, csr.num_edges(), csr.num_cols, "indices");
    with_edge_reader(csr.edge_ids, [&](auto edge_of) {
      const auto in_order = [&](int64_t e, int64_t next) {
        if (times != nullptr && times[e] != times[next]) return times[e] < times[next];
        return indices[e] < indices[next] || (indices[e] == indices[next] && edge_of(e) <= edge_of(next));
      };
      pool.parallel_for(csr.num_rows(), kRowGrain, [&](int64_t begin, int64_t end) {
        for (int64_t v = begin; v < end; ++v)
          for (int64_t e = indptr[v] + 1; e < indptr[v + 1]; ++e)
            if (!in_order(e - 1, e))
              throw InvalidArgument(message("indices: row ", v, " is not sorted by (", times != nullptr ? "time, " : "",
                                            "neighbor id, edge id)"));
      });
    });
  });
  if (csr.weight_sums.defined()) validate_sums(csr);
}

Csr build_csr(const Tensor& row, const Tensor& col, const EdgeData& data, int64_t num_rows, int64_t num_cols,
              ThreadPool& pool) {
  check_index_vector(row, "row");
  check_index_vector(col, "col");
  const int64_t num_edges = row.shape[0];
  if (col.shape[0] != num_edges)
    throw InvalidArgument(message("col: expected as many entries as row, ", num_edges, ", got ", col.shape[0]));
  if (num_rows < 0 || num_cols < 0)
    throw InvalidArgument(message("num_rows, num_cols: expected at least 0, got ", num_rows, ", ", num_cols));
  check_edge_ids(data.ids, num_edges);
  check_per_edge(data.times, num_edges, kInt64, true, "edge_times");
  check_weights(data.weights, num_edges);
  Csr csr;
  csr.num_cols = num_cols;
  csr.indptr = empty({num_rows + 1}, kInt64);
  csr.indices = empty({num_edges}, narrowest(num_cols));
  csr.edge_ids = empty({num_edges}, narrowest(largest_edge_id(data.ids, num_edges)));
  if (data.times.defined()) csr.times = empty({num_edges}, kInt64);
  if (data.weights.defined()) csr.weights = empty({num_edges}, data.weights.dtype);
  dispatch_index(row.dtype, "row", [&](auto row_tag) {
    dispatch_index(col.dtype, "col", [&](auto col_tag) {
      const auto* rows = row.as<decltype(row_tag)>();
      const auto* cols = col.as<decltype(col_tag)>();
      check_ids(rows, num_edges, num_rows, "row");
      check_ids(cols, num_edges, num_cols, "col");
      dispatch_index(csr.indices.dtype, "indices", [&](auto index_tag) {
        dispatch_index(csr.edge_ids.dtype, "edge_ids", [&](auto edge_tag) {
          with_edge_reader(data.ids, [&](auto edge_of) {
            fill<decltype(row_tag), decltype(col_tag), decltype(index_tag), decltype(edge_tag)>(
                rows, cols, edge_of, data, num_edges, csr, pool);
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
  const RowOffsets row_at(csr);
  Csr out;
  out.num_cols = csr.num_cols;
  out.indptr = empty({count + 1}, kInt64);
  int64_t* out_indptr = out.indptr.as<int64_t>();
  out_indptr[0] = 0;
  dispatch_index(rows.dtype, "rows", [&](auto tag) {
    const auto* ids = rows.as<decltype(tag)>();
    check_ids(ids, count, csr.num_rows(), "rows");
    for (int64_t i = 0; i < count; ++i) out_indptr[i + 1] = out_indptr[i] + row_at[ids[i]].size();
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
              const int64_t source = row_at[ids[i]].begin, degree = out_indptr[i + 1] - out_indptr[i];
              std::copy_n(csr.indices.as<Index>() + source, degree, out.indices.as<Index>() + out_indptr[i]);
              Edge* edges = out.edge_ids.as<Edge>() + out_indptr[i];
              for (int64_t e = 0; e < degree; ++e) edges[e] = static_cast<Edge>(edge_of(source + e));
            }
          });
        });
      });
    });
    const auto copy_rows = [&](const Tensor& from, Tensor& to) {
      if (!from.defined()) return;
      to = empty({num_edges}, from.dtype);
      const Bits source = bits_of(from), target = bits_of(to);
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(target.data + out_indptr[i] * target.size, source.data + row_at[ids[i]].begin * source.size,
                    (out_indptr[i + 1] - out_indptr[i]) * source.size);
    };
    copy_rows(csr.times, out.times);
    copy_rows(csr.weights, out.weights);
  });
  return out;
}

}  // namespace gld

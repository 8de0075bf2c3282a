#include "sampling/neighbor_sampler.h"

#include "sampling/cpu/pick_block.h"

namespace gld {
namespace {

constexpr int64_t kBlock = 256;  // nodes picked together: their positions stay in the first-level cache

template <typename Id, typename Index>
struct OneHopKernel {
  const Csr& csr;
  const Id* ids;
  const int64_t* rows;  // null: rows are the ids
  const HopDraw& draw;
  EdgeIdReader edge_ids;

  int64_t row(int64_t i) const { return rows != nullptr ? rows[i] : static_cast<int64_t>(ids[i]); }

  void count(int64_t begin, int64_t end, int64_t* counts) const {
    const int64_t* indptr = csr.indptr.as<int64_t>();
    const int64_t num_rows = csr.num_rows();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = row(i);
      if (r < 0 || r >= num_rows)
        throw UnknownId(
            message("ids[", i, "]: node id ", static_cast<int64_t>(ids[i]), " is outside [0, ", num_rows, ")"));
      if (i + kPrefetchRows < end) {
        const int64_t ahead = row(i + kPrefetchRows);
        if (ahead >= 0 && ahead < num_rows) __builtin_prefetch(indptr + ahead);
      }
      counts[i] = pick_count(indptr[r + 1] - indptr[r], draw.fanout, draw.replace);
    }
  }

  void pick(int64_t begin, int64_t end, const int64_t* offsets, Index* neighbors, int64_t* edges) const {
    const int64_t* indptr = csr.indptr.as<int64_t>();
    const Index* indices = csr.indices.as<Index>();
    std::vector<int64_t> positions;
    for (int64_t block = begin; block < end; block += kBlock) {
      const int64_t block_end = std::min(block + kBlock, end), first = offsets[block];
      positions.resize(std::max<int64_t>(positions.size(), offsets[block_end] - first));
      for (int64_t i = block; i < block_end; ++i) {
        const int64_t start = indptr[row(i)], degree = indptr[row(i) + 1] - start;
        int64_t* picked = positions.data() + offsets[i] - first;
        pick_positions(NodeStream(draw.key, ids[i]), degree, draw, picked);
        const int64_t count = offsets[i + 1] - offsets[i];
        for (int64_t j = 0; j < count; ++j) {
          picked[j] += start;
          __builtin_prefetch(indices + picked[j]);
        }
      }
      const int64_t picked_count = offsets[block_end] - first;
      for (int64_t j = 0; j < picked_count; ++j) neighbors[first + j] = indices[positions[j]];
      if (edges != nullptr)
        for (int64_t j = 0; j < picked_count; ++j) edges[first + j] = edge_ids(positions[j]);
    }
  }
};

}  // namespace

void check_fanout(int64_t fanout) {
  if (fanout != kTakeAll && fanout < 1)
    throw InvalidArgument(message("num_neighbors: expected -1 (all neighbors) or at least 1, got ", fanout));
}

OneHop sample_neighbors(const Csr& csr, const Tensor& ids, const Tensor& rows, const HopDraw& draw, ThreadPool& pool) {
  check_fanout(draw.fanout);
  check_index_vector(ids, "ids");
  if (rows.defined()) {
    check_index_vector(rows, "rows");
    if (rows.dtype != kInt64 || rows.shape[0] != ids.shape[0])
      throw InvalidArgument(
          message("rows: expected int64 [", ids.shape[0], "], got ", to_string(rows.dtype), " [", rows.shape[0], "]"));
  }
  const int64_t count = ids.shape[0];
  OneHop out;
  out.counts = empty({count}, kInt64);
  Tensor offset_memory = empty({count + 1}, kInt64);
  int64_t* counts = out.counts.as<int64_t>();
  int64_t* offsets = offset_memory.as<int64_t>();
  dispatch_index(ids.dtype, "ids", [&](auto id_tag) {
    dispatch_index(csr.indices.dtype, "indices", [&](auto index_tag) {
      using Id = decltype(id_tag);
      using Index = decltype(index_tag);
      const OneHopKernel<Id, Index> kernel{csr, ids.as<Id>(), rows.defined() ? rows.as<int64_t>() : nullptr, draw,
                                           EdgeIdReader(csr)};
      pool.parallel_for(count, kBlock, [&](int64_t begin, int64_t end) { kernel.count(begin, end, counts); });
      offsets[0] = 0;
      for (int64_t i = 0; i < count; ++i) offsets[i + 1] = offsets[i] + counts[i];
      out.neighbors = empty({offsets[count]}, csr.indices.dtype);
      if (draw.with_edge_ids) out.edge_ids = empty({offsets[count]}, kInt64);
      pool.parallel_for(count, kBlock, [&](int64_t begin, int64_t end) {
        kernel.pick(begin, end, offsets, out.neighbors.as<Index>(),
                    draw.with_edge_ids ? out.edge_ids.as<int64_t>() : nullptr);
      });
    });
  });
  return out;
}

}  // namespace gld

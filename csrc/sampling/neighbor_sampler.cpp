#include "sampling/neighbor_sampler.h"

#include <cstring>
#include <string>

#include "sampling/cpu/hop_graph.h"
#include "sampling/methods.h"

namespace gld {
namespace {

constexpr int64_t kBlock = 4 * kBlockLanes;  // nodes counted together, and the fewest that are worth a thread

template <typename Id, typename Index, typename Picker>
struct OneHopKernel {
  const Csr& csr;
  const Picker& picker;
  const Id* ids;
  const int64_t* rows;   // null: rows are the ids
  const int64_t* trees;  // null: one tree
  uint64_t key;
  EdgeIdReader edge_ids;
  bool asks_ahead;
  bool with_edge_ids;

  int64_t row(int64_t i) const { return rows != nullptr ? rows[i] : static_cast<int64_t>(ids[i]); }

  void check(int64_t begin, int64_t end) const {
    const int64_t num_rows = csr.num_rows();
    for (int64_t i = begin; i < end; ++i)
      if (row(i) < 0 || row(i) >= num_rows)
        throw UnknownId(
            message("ids[", i, "]: node id ", static_cast<int64_t>(ids[i]), " is outside [0, ", num_rows, ")"));
  }

  void count(int64_t begin, int64_t end, Candidates* candidates, int64_t* counts) const {
    check(begin, end);
    for (int64_t block = begin; block < end; block += kBlock) {
      const int64_t block_end = std::min(block + kBlock, end);
      read_candidates(
          picker, csr.indptr.as<int64_t>(), [this](int64_t i) { return row(i); }, block, block_end, candidates + block);
      for (int64_t i = block; i < block_end; ++i) counts[i] = picker.num_picks(candidates[i]);
    }
  }

  void ask_for_pages(const Candidates* candidates, int64_t count) const {
    if (asks_ahead)
      ask_for_rows(WholeHopGraph<HopPiece<Picker, Index>>(HopPiece<Picker, Index>(csr, picker)), candidates, count,
                   with_edge_ids);
  }

  void pick(int64_t begin, int64_t end, const Candidates* candidates, const int64_t* offsets, Index* neighbors,
            int64_t* edges) const {
    using Graph = WholeHopGraph<HopPiece<Picker, Index>>;
    const Graph graph(HopPiece<Picker, Index>(csr, picker));
    const FrontierPicks<Graph, Id> picks{graph, key, candidates, ids, trees, end};
    const Index* indices = csr.indices.as<Index>();
    // What a block asks of memory has arrived when the next one is picked, and is read then.
    std::vector<int64_t> positions, last_positions;
    int64_t last = begin;  // where the last block begins
    for (int64_t block = begin; block < end; block += kBlockLanes) {
      const int64_t block_end = std::min(block + kBlockLanes, end);
      positions.resize(std::max<int64_t>(positions.size(), offsets[block_end] - offsets[block]));
      picks.pick(block, block_end, Places{candidates, indices, positions.data()});
      read(offsets[last], offsets[block], last_positions.data(), neighbors, edges);
      last = block;
      positions.swap(last_positions);
    }
    read(offsets[last], offsets[end], last_positions.data(), neighbors, edges);
  }

  // Those of picks [begin, end), which lie at these positions.
  void read(int64_t begin, int64_t end, const int64_t* positions, Index* neighbors, int64_t* edges) const {
    const Index* indices = csr.indices.as<Index>();
    for (int64_t j = begin; j < end; ++j) neighbors[j] = indices[positions[j - begin]];
    check_neighbors(neighbors + begin, end - begin, csr.num_cols);
    if (edges == nullptr) return;
    for (int64_t j = begin; j < end; ++j) edges[j] = edge_ids(positions[j - begin]);
  }

  // Where picks are written, one node's behind the other's.
  struct Places {
    const Candidates* candidates;
    const Index* indices;
    int64_t* next;

    int64_t* room() const { return next; }
    template <typename PickAt>
    void operator()(int64_t i, int64_t count, PickAt pick_at) {
      for (int64_t j = 0; j < count; ++j) {
        const int64_t position = candidates[i].start + pick_at(j);
        __builtin_prefetch(indices + position);
        next[j] = position;
      }
      next += count;
    }
  };
};

void check_per_node(const Tensor& tensor, const Tensor& ids, const char* name) {
  if (tensor.defined()) check_int64_vector(tensor, ids.shape[0], name);
}

const int64_t* optional_data(const Tensor& tensor) { return tensor.defined() ? tensor.as<int64_t>() : nullptr; }

}  // namespace

Method method_named(const char* name) {
  std::string known;
  for (size_t i = 0; i < Methods::kTraits.size(); ++i) {
    if (std::strcmp(Methods::kTraits[i].name, name) == 0) return static_cast<Method>(i);
    known += (i > 0 ? ", " : "") + std::string(Methods::kTraits[i].name);
  }
  throw InvalidArgument(message("method: expected one of ", known, "; got ", name));
}

void check_draw(const Csr& csr, const HopDraw& draw, bool nodes_have_times) {
  if (draw.fanout < kTakeAll)
    throw InvalidArgument(message("num_neighbors: expected -1 (all neighbors) or at least 0, got ", draw.fanout));
  // With replacement each node has as many picks, and sums over a frontier must not wrap around.
  if (draw.fanout > kMaxFanout)
    throw InvalidArgument(message("num_neighbors: expected at most ", kMaxFanout, ", got ", draw.fanout));
  const DrawMethod how = draw.how;
  const MethodTraits& method = traits_of(how.method);
  if (method.reads_weights && !(csr.weight_sums.defined() && csr.weights.defined()))
    throw InvalidArgument(
        message("with_weight, strategy: ", method.called, " was asked for, but the graph has no edge weights"));
  if (how.replace && !method.may_replace)
    throw InvalidArgument(
        message("replace: ", method.called, " samples without replacement; expected False, got True"));
  if (how.times == TimeRule::kIgnore) return;
  if (!csr.times.defined() || !nodes_have_times)
    throw InvalidArgument(message("times: temporal sampling was asked for, but the ",
                                  csr.times.defined() ? "seeds have" : "graph has", " no times"));
  if (how.times == TimeRule::kLatest && (how.method != Method::kUniform || how.replace))
    throw InvalidArgument(
        "times: the latest edges are taken and not drawn; expected the uniform method and no replacement");
}

OneHop sample_neighbors(const Csr& csr, const HopNodes& nodes, const HopDraw& draw, ThreadPool& pool,
                        int64_t max_neighbors) {
  check_draw(csr, draw, nodes.times.defined());
  check_index_vector(nodes.ids, "ids");
  check_per_node(nodes.rows, nodes.ids, "rows");
  check_per_node(nodes.trees, nodes.ids, "trees");
  check_per_node(nodes.times, nodes.ids, "times");
  const int64_t count = nodes.ids.shape[0];
  OneHop out;
  out.counts = empty({count}, kInt64);
  Tensor offset_memory = empty({count + 1}, kInt64);
  const Tensor candidate_memory = empty({count, sizeof(Candidates) / sizeof(int64_t)}, kInt64);
  auto* const candidates = candidate_memory.as<Candidates>();
  int64_t* counts = out.counts.as<int64_t>();
  int64_t* offsets = offset_memory.as<int64_t>();
  with_picker(csr, draw, optional_data(nodes.times), [&](const auto& picker) {
    dispatch_index(nodes.ids.dtype, "ids", [&](auto id_tag) {
      dispatch_index(csr.indices.dtype, "indices", [&](auto index_tag) {
        using Id = decltype(id_tag);
        using Index = decltype(index_tag);
        const OneHopKernel<Id, Index, std::decay_t<decltype(picker)>> kernel{csr,
                                                                             picker,
                                                                             nodes.ids.as<Id>(),
                                                                             optional_data(nodes.rows),
                                                                             optional_data(nodes.trees),
                                                                             draw.key,
                                                                             EdgeIdReader(csr),
                                                                             asks_ahead(csr),
                                                                             draw.with_edge_ids};
        pool.parallel_for(count, kBlock,
                          [&](int64_t begin, int64_t end) { kernel.count(begin, end, candidates, counts); });
        offsets[0] = 0;
        for (int64_t i = 0; i < count; ++i) offsets[i + 1] = offsets[i] + counts[i];
        if (offsets[count] > max_neighbors)
          throw InvalidArgument(message("num_neighbors: expected at most ", max_neighbors,
                                        " neighbors in one answer, got ", offsets[count]));
        out.neighbors = empty({offsets[count]}, csr.indices.dtype);
        if (draw.with_edge_ids) out.edge_ids = empty({offsets[count]}, kInt64);
        if (draw.fanout == 0) return;  // pickers draw at least one
        kernel.ask_for_pages(candidates, count);
        const int64_t waited_before = pages_waited_for();
        pool.parallel_for(count, kBlock, [&](int64_t begin, int64_t end) {
          kernel.pick(begin, end, candidates, offsets, out.neighbors.as<Index>(),
                      draw.with_edge_ids ? out.edge_ids.as<int64_t>() : nullptr);
        });
        if (csr.watch != nullptr)  // the other threads wait as much as this one
          csr.watch->ends_hop(kernel.asks_ahead, count, (pages_waited_for() - waited_before) * pool.size());
      });
    });
  });
  return out;
}

}  // namespace gld

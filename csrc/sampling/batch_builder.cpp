#include "sampling/batch_builder.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "sampling/cpu/pick_block.h"

namespace gld {
namespace {

// One thread works on a block of this many seeds at a time, so that its picks are still in the cache when they are
// relabelled; several threads share the whole frontier.
constexpr int64_t kFusedBlock = 128;
constexpr int64_t kPickGrain = 64;
constexpr int64_t kRelabelAhead = 24;
constexpr int64_t kSmallestCapacity = 1024;

}  // namespace

void GrowingArray::clear() {
  largest_ = std::max(largest_, size_);
  memory_ = Tensor{};
  data_ = nullptr;
  size_ = capacity_ = 0;
  reserve(std::max(largest_ + largest_ / 8, kSmallestCapacity));
}

void GrowingArray::reserve(int64_t capacity) {
  if (capacity <= capacity_) return;
  const int64_t wanted = std::max(capacity, 2 * capacity_);
  Tensor grown = empty({wanted}, kInt64);
  if (size_ > 0) std::memcpy(grown.data, data_, size_ * sizeof(int64_t));
  memory_ = std::move(grown);
  data_ = memory_.as<int64_t>();
  capacity_ = wanted;
}

Tensor GrowingArray::view(int64_t begin, int64_t end) const {
  Tensor view = memory_;
  view.data = data_ + begin;
  view.shape = {end - begin};
  return view;
}

BatchBuilder::BatchBuilder(std::vector<int64_t> num_nodes, std::vector<EdgeTypeSpec> edge_types) {
  const int num_types = static_cast<int>(num_nodes.size());
  for (int64_t count : num_nodes) {
    if (count < 0) throw InvalidArgument(message("num_nodes: expected at least 0, got ", count));
    if (count <= kDenseRelabelLimit)
      nodes_.push_back({count, Table(std::in_place_type<DenseRelabelTable>, count), {}, 0, 0, {}});
    else
      nodes_.push_back({count, Table(std::in_place_type<HashRelabelTable>), {}, 0, 0, {}});
  }
  for (EdgeTypeSpec spec : edge_types) {
    if (spec.seed_type < 0 || spec.seed_type >= num_types || spec.neighbor_type < 0 || spec.neighbor_type >= num_types)
      throw InvalidArgument(message("edge_types: node types ", spec.seed_type, ", ", spec.neighbor_type,
                                    " are outside [0, ", num_types, ")"));
    edges_.push_back({spec, {}, {}, {}, 0, {}});
  }
}

void BatchBuilder::begin(int seed_type, const Tensor& seeds, int64_t max_new_nodes, bool with_edge_ids) {
  check_index_vector(seeds, "seeds");
  if (seed_type < 0 || seed_type >= static_cast<int>(nodes_.size()))
    throw InvalidArgument(message("seed_type: ", seed_type, " is outside [0, ", nodes_.size(), ")"));
  const int64_t num_seeds = seeds.shape[0];
  with_edge_ids_ = with_edge_ids;
  for (NodeState& node : nodes_) {
    const int64_t added = max_new_nodes < 0 ? node.num_nodes : std::min(node.num_nodes, max_new_nodes);
    std::visit([&](auto& table) { table.begin(num_seeds + added); }, node.table);
    node.nodes.clear();
    node.frontier_begin = node.frontier_end = 0;
    node.per_hop.assign(1, 0);
  }
  for (EdgeState& edge : edges_) {
    edge.rows.clear();
    edge.cols.clear();
    if (with_edge_ids) edge.edge_ids.clear();
    edge.hop_edges = 0;
    edge.per_hop.clear();
  }
  NodeState& node = nodes_[seed_type];
  node.nodes.reserve(num_seeds);
  dispatch_index(seeds.dtype, "seeds", [&](auto tag) {
    const auto* ids = seeds.as<decltype(tag)>();
    std::visit(
        [&](auto& table) {
          uint32_t is_new;
          for (int64_t i = 0; i < num_seeds; ++i) {
            if (ids[i] < 0 || ids[i] >= node.num_nodes)
              throw UnknownId(message("input_nodes: node id ", static_cast<int64_t>(ids[i]), " is outside [0, ",
                                      node.num_nodes, ")"));
            table.insert(ids[i], static_cast<uint32_t>(i), &is_new);
            node.nodes.data()[i] = ids[i];
          }
        },
        node.table);
  });
  node.nodes.set_size(num_seeds);
  node.frontier_end = num_seeds;
  node.per_hop[0] = num_seeds;
}

BatchBuilder::EdgeState& BatchBuilder::edge_state(int edge_type) {
  if (edge_type < 0 || edge_type >= static_cast<int>(edges_.size()))
    throw InvalidArgument(message("edge_type: ", edge_type, " is outside [0, ", edges_.size(), ")"));
  return edges_[edge_type];
}

Tensor BatchBuilder::frontier(int node_type) const {
  if (node_type < 0 || node_type >= static_cast<int>(nodes_.size()))
    throw InvalidArgument(message("node_type: ", node_type, " is outside [0, ", nodes_.size(), ")"));
  const NodeState& node = nodes_[node_type];
  return node.nodes.view(node.frontier_begin, node.frontier_end);
}

int64_t BatchBuilder::extend(EdgeState& edge, int64_t count) {
  const int64_t first = edge.rows.size();
  edge.rows.reserve(first + count);
  edge.cols.reserve(first + count);
  edge.rows.set_size(first + count);
  edge.cols.set_size(first + count);
  if (with_edge_ids_) {
    edge.edge_ids.reserve(first + count);
    edge.edge_ids.set_size(first + count);
  }
  GrowingArray& nodes = nodes_[edge.spec.neighbor_type].nodes;
  nodes.reserve(nodes.size() + count + 1);  // one spare: the branch-free insert writes before it knows
  edge.hop_edges += count;
  return first;
}

void BatchBuilder::relabel(EdgeState& edge, int64_t begin, int64_t end) {
  NodeState& node = nodes_[edge.spec.neighbor_type];
  int64_t* rows = edge.rows.data();
  int64_t* nodes = node.nodes.data();
  int64_t next = node.nodes.size();
  std::visit(
      [&](auto& table) {
        for (int64_t e = begin; e < std::min(begin + kRelabelAhead, end); ++e) table.prefetch(rows[e]);
        for (int64_t e = begin; e < end; ++e) {
          if (e + kRelabelAhead < end) table.prefetch(rows[e + kRelabelAhead]);
          const int64_t id = rows[e];
          uint32_t is_new;
          rows[e] = table.insert(id, static_cast<uint32_t>(next), &is_new);
          nodes[next] = id;
          next += is_new;
        }
      },
      node.table);
  node.nodes.set_size(next);
}

void BatchBuilder::sample_block(EdgeState& edge, const Csr& csr, const HopDraw& draw, int64_t begin, int64_t end,
                                ThreadPool& pool) {
  const int64_t* indptr = csr.indptr.as<int64_t>();
  const int64_t* frontier = nodes_[edge.spec.seed_type].nodes.data();
  const int64_t count = end - begin;
  starts_.resize(count);
  degrees_.resize(count);
  offsets_.resize(count + 1);
  pool.parallel_for(count, kPickGrain, [&](int64_t from, int64_t to) {
    const int64_t* ids = frontier + begin + from;
    read_rows(indptr, [ids](int64_t i) { return ids[i]; }, to - from, starts_.data() + from, degrees_.data() + from);
  });
  offsets_[0] = 0;
  for (int64_t i = 0; i < count; ++i)
    offsets_[i + 1] = offsets_[i] + pick_count(degrees_[i], draw.fanout, draw.replace);
  const int64_t first = extend(edge, offsets_[count]);
  frontier = nodes_[edge.spec.seed_type].nodes.data();  // extend() may have moved it
  int64_t* rows = edge.rows.data() + first;
  int64_t* cols = edge.cols.data() + first;
  int64_t* edge_ids = with_edge_ids_ ? edge.edge_ids.data() + first : nullptr;
  const EdgeIdReader edge_id_at(csr);
  dispatch_index(csr.indices.dtype, "indices", [&](auto tag) {
    const auto* indices = csr.indices.as<decltype(tag)>();
    pool.parallel_for(count, kPickGrain, [&](int64_t from, int64_t to) {
      // Positions go through `rows` itself: picked first, all prefetched, then replaced by the ids they lead to.
      for (int64_t i = from; i < to; ++i) {
        pick_positions(NodeStream(draw.key, frontier[begin + i]), degrees_[i], draw, rows + offsets_[i]);
        for (int64_t e = offsets_[i]; e < offsets_[i + 1]; ++e) {
          rows[e] += starts_[i];
          cols[e] = begin + i;
          __builtin_prefetch(indices + rows[e]);
        }
      }
      if (edge_ids != nullptr)
        for (int64_t e = offsets_[from]; e < offsets_[to]; ++e) edge_ids[e] = edge_id_at(rows[e]);
      for (int64_t e = offsets_[from]; e < offsets_[to]; ++e) rows[e] = indices[rows[e]];
    });
  });
  relabel(edge, first, first + offsets_[count]);
}

void BatchBuilder::sample_hop(int edge_type, const Csr& csr, const HopDraw& draw, ThreadPool& pool) {
  check_fanout(draw.fanout);
  EdgeState& edge = edge_state(edge_type);
  const NodeState& seeds = nodes_[edge.spec.seed_type];
  if (csr.num_rows() != seeds.num_nodes || csr.num_cols != nodes_[edge.spec.neighbor_type].num_nodes)
    throw InvalidArgument(message("csr: expected ", seeds.num_nodes, " rows and ",
                                  nodes_[edge.spec.neighbor_type].num_nodes, " columns, got ", csr.num_rows(), " and ",
                                  csr.num_cols));
  const int64_t begin = seeds.frontier_begin, end = seeds.frontier_end;
  const int64_t block = pool.size() == 1 ? kFusedBlock : std::max<int64_t>(end - begin, 1);
  for (int64_t at = begin; at < end; at += block) sample_block(edge, csr, draw, at, std::min(at + block, end), pool);
}

void BatchBuilder::add_hop(int edge_type, const Tensor& counts, const Tensor& neighbors, const Tensor& edge_ids) {
  EdgeState& edge = edge_state(edge_type);
  const NodeState& seeds = nodes_[edge.spec.seed_type];
  const int64_t num_seeds = seeds.frontier_end - seeds.frontier_begin;
  check_index_vector(counts, "counts");
  check_index_vector(neighbors, "neighbors");
  if (counts.dtype != kInt64 || counts.shape[0] != num_seeds)
    throw InvalidArgument(message("counts: expected int64 [", num_seeds, "], one per node of the frontier, got ",
                                  to_string(counts.dtype), " [", counts.shape[0], "]"));
  const int64_t total = neighbors.shape[0];
  int64_t sum = 0;
  for (int64_t i = 0; i < num_seeds; ++i) {
    const int64_t count = counts.as<int64_t>()[i];
    // Each is bounded by itself, too: the sum alone does not keep the writes below within their slots.
    if (count < 0 || count > total)
      throw InvalidArgument(message("counts[", i, "]: ", count, " is outside [0, ", total, "]"));
    sum += count;
  }
  if (sum != total)
    throw InvalidArgument(message("neighbors: expected ", sum, " entries, the sum of counts, got ", total));
  if (with_edge_ids_ && (!edge_ids.defined() || edge_ids.dtype != kInt64 || edge_ids.shape != neighbors.shape))
    throw InvalidArgument(message("edge_ids: expected int64 [", total, "], one per neighbor"));
  const int64_t first = extend(edge, total);
  int64_t* cols = edge.cols.data() + first;
  for (int64_t i = 0; i < num_seeds; ++i) cols = std::fill_n(cols, counts.as<int64_t>()[i], seeds.frontier_begin + i);
  if (with_edge_ids_) std::copy_n(edge_ids.as<int64_t>(), total, edge.edge_ids.data() + first);
  const int64_t limit = nodes_[edge.spec.neighbor_type].num_nodes;
  dispatch_index(neighbors.dtype, "neighbors", [&](auto tag) {
    const auto* ids = neighbors.as<decltype(tag)>();
    int64_t* rows = edge.rows.data() + first;
    for (int64_t e = 0; e < total; ++e) {
      if (ids[e] < 0 || ids[e] >= limit)
        throw UnknownId(message("neighbors: node id ", static_cast<int64_t>(ids[e]), " is outside [0, ", limit, ")"));
      rows[e] = ids[e];
    }
  });
  relabel(edge, first, first + total);
}

void BatchBuilder::next_hop() {
  for (NodeState& node : nodes_) {
    node.frontier_begin = node.frontier_end;
    node.frontier_end = node.nodes.size();
    node.per_hop.push_back(node.frontier_end - node.frontier_begin);
  }
  for (EdgeState& edge : edges_) {
    edge.per_hop.push_back(edge.hop_edges);
    edge.hop_edges = 0;
  }
}

SampledSubgraph BatchBuilder::finish() {
  SampledSubgraph out;
  for (NodeState& node : nodes_) {
    out.nodes.push_back(node.nodes.view(0, node.nodes.size()));
    out.num_sampled_nodes.push_back(node.per_hop);
  }
  for (EdgeState& edge : edges_) {
    const int64_t count = edge.rows.size();
    out.rows.push_back(edge.rows.view(0, count));
    out.cols.push_back(edge.cols.view(0, count));
    out.edge_ids.push_back(with_edge_ids_ ? edge.edge_ids.view(0, count) : Tensor{});
    out.num_sampled_edges.push_back(edge.per_hop);
  }
  return out;
}

}  // namespace gld

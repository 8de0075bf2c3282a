#include "sampling/batch_builder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

#include "common/ordered_blocks.h"
#include "sampling/cpu/hop_graph.h"

namespace gld {
namespace {

// Nodes of the frontier that are picked together: few enough that their picks are still in the second-level cache when
// they are relabelled, enough that the memory requests of one block overlap.
constexpr int64_t kBlock = kBlockLanes;
constexpr int64_t kCountGrain = 16;  // blocks
constexpr int64_t kRelabelAhead = 64;
constexpr int64_t kReadAhead = 128;
constexpr int64_t kSmallestCapacity = 1024;
constexpr int64_t kManyEdges = 1 << 15;  // fewer are written in the time that it takes to leave them to somebody

// Asks for the entries of all ids at once, before they are inserted one by one.
template <typename Table, typename Id>
void prefetch(Table& members, const Id* ids, int64_t count) {
  std::visit(
      [&](auto& table) {
        const auto view = table.view(count);
        for (int64_t i = 0; i < count; ++i) view.prefetch(ids[i]);
      },
      members);
}

// What a node of the frontier has, as add_hop() was given it.
template <typename Id>
struct AnsweredEdges {
  const Id* ids;
  const int64_t* edge_ids;  // null where they are not wanted
  int64_t count;
  int64_t readable;  // entries from `ids` on that may be read, at least `count`
};

// Answers on their way from where they came to where they are relabelled, a few thousand edges at a time: these loops
// are about as long as they can be without leaving a core's first cache.
template <typename Id>
struct StagedIds {
  static constexpr int64_t kRoom = 4096;
  static constexpr int64_t kLanes = 16;  // most nodes have few edges: so many are copied at once, whatever is behind

  int64_t size = 0;
  Id ids[kRoom + kLanes];
  int64_t trees[kRoom + kLanes];  // of a disjoint batch

  // Only where there is room for `count`, and for kLanes.
  void add(const Id* from, int64_t count, int64_t readable) {
    if (count <= kLanes && readable >= kLanes)
      std::memcpy(ids + size, from, kLanes * sizeof(Id));
    else
      std::copy_n(from, count, ids + size);
  }
};

// The first stage of a hop, block by block of the frontier: which neighbors are picked, and who they are.
template <typename Graph>
struct PickKernel {
  using Index = typename Graph::Index;

  FrontierPicks<Graph, int64_t> picks;
  const int64_t* offsets;  // per block, its first edge
  uint32_t* counts;        // per node of the frontier, its edges
  Index* ids;              // per edge, its neighbor
  uint32_t* nodes;         // per edge, the node of the frontier that it is of; null where nobody wants to know
  int64_t* edge_ids;       // per edge, or null
  int64_t num_neighbors;   // nodes of the neighbors' type

  // Positions of the block's picks in the graph's arrays; the neighbors there are on their way to the cache.
  void pick(int64_t block, int64_t* positions) const {
    const int64_t begin = block * kBlock, end = std::min((block + 1) * kBlock, picks.num_nodes);
    std::fill(counts + begin, counts + end, 0);
    picks.pick(begin, end, Places{*this, positions, nodes == nullptr ? nullptr : nodes + offsets[block]});
  }

  // Where picks are written, from an edge on.
  struct Places {
    const PickKernel& kernel;
    int64_t* positions;
    uint32_t* nodes;

    int64_t* room() const { return positions; }
    template <typename PickAt>
    void operator()(int64_t i, int64_t count, PickAt pick_at) {
      const int64_t start = kernel.picks.candidates[i].start;
      const auto* indices = kernel.picks.graph.piece(i).indices;
      kernel.counts[i] = static_cast<uint32_t>(count);
      for (int64_t j = 0; j < count; ++j) {
        const int64_t position = start + pick_at(j);
        __builtin_prefetch(indices + position);
        positions[j] = position;
      }
      positions += count;
      if (nodes == nullptr) return;
      std::fill_n(nodes, count, static_cast<uint32_t>(i));
      nodes += count;
    }
  };

  // The ids that stand at these positions, after which each is that of a node.
  void read(int64_t block, const int64_t* positions) const {
    const int64_t begin = offsets[block], count = offsets[block + 1] - begin;
    const auto piece = [&](int64_t e) -> const auto& {
      return picks.graph.piece(Graph::kInPieces ? nodes[begin + e] : 0);
    };
    if (edge_ids != nullptr)
      for (int64_t e = 0; e < count; ++e) edge_ids[begin + e] = piece(e).edge_id_at(positions[e]);
    for (int64_t e = 0; e < count; ++e) ids[begin + e] = piece(e).indices[positions[e]];
    check_neighbors(ids + begin, count, num_neighbors);
  }
};

// Ids of neighbors that came from elsewhere.
template <typename Id>
void check_added(const Id* ids, int64_t count, int64_t limit) {
  if (are_nodes(ids, count, limit)) return;
  const int64_t id = *std::find_if(ids, ids + count, [&](int64_t each) { return each < 0 || each >= limit; });
  throw UnknownId(message("neighbors: node id ", id, " is outside [0, ", limit, ")"));
}

Tensor as_int64(const Tensor& values) {
  if (values.dtype == kInt64) return values;
  Tensor out = empty({values.numel()}, kInt64);
  std::copy_n(values.as<int32_t>(), values.numel(), out.as<int64_t>());
  return out;
}

// From one entry on, half of the entries of a tensor, with one extent.
Tensor half(const Tensor& pairs, int64_t first) {
  Tensor out = pairs;
  out.data = pairs.as<int64_t>() + first;
  out.shape = {pairs.numel() / 2};
  return out;
}

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

BatchBuilder::BatchBuilder(std::vector<int64_t> num_nodes, std::vector<EdgeTypeSpec> edge_types, int64_t most_dense) {
  if (most_dense < 0) throw InvalidArgument(message("most_dense: expected at least 0, got ", most_dense));
  const int num_types = static_cast<int>(num_nodes.size());
  for (int64_t count : num_nodes) {
    if (count < 0) throw InvalidArgument(message("num_nodes: expected at least 0, got ", count));
    if (count <= std::min(most_dense, kDenseRelabelLimit))
      nodes_.push_back({count, Table(std::in_place_type<DenseRelabelTable>, count), {}, {}, {}, 0, 0, 0, {}});
    else
      nodes_.push_back({count, Table(std::in_place_type<HashRelabelTable>), {}, {}, {}, 0, 0, 0, {}});
  }
  for (EdgeTypeSpec spec : edge_types) {
    if (spec.seed_type < 0 || spec.seed_type >= num_types || spec.neighbor_type < 0 || spec.neighbor_type >= num_types)
      throw InvalidArgument(message("edge_types: node types ", spec.seed_type, ", ", spec.neighbor_type,
                                    " are outside [0, ", num_types, ")"));
    edges_.push_back({spec, {}, {}, 0, {}});
  }
}

int64_t BatchBuilder::max_local(const NodeState& node, int64_t num_seeds, int64_t max_new_nodes, bool disjoint) const {
  if (num_seeds < 0) throw InvalidArgument(message("num_seeds: expected at least 0, got ", num_seeds));
  if (max_new_nodes < -1)
    throw InvalidArgument(message("max_new_nodes: expected at least 0, or -1 for no bound, got ", max_new_nodes));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const int64_t told = max_new_nodes < 0 ? kMost : max_new_nodes;
  if (disjoint) return told > kMost - num_seeds ? kMost : num_seeds + told;  // a node is new once for each tree
  const int64_t added = std::min(node.num_nodes, told);
  if (num_seeds > kMost - added)
    throw InvalidArgument(message("num_seeds: expected fewer than 2^63 nodes in a batch, got ", num_seeds, " seeds"));
  return num_seeds + added;
}

bool BatchBuilder::begin_clears(int64_t num_seeds, int64_t max_new_nodes, bool disjoint) const {
  if (disjoint) return false;
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const NodeState& node) {
    const auto* table = std::get_if<DenseRelabelTable>(&node.table);
    return table != nullptr && table->begin_clears(max_local(node, num_seeds, max_new_nodes, false));
  });
}

void BatchBuilder::begin(int64_t num_seeds, int64_t max_new_nodes, bool with_edge_ids, bool disjoint) {
  with_edge_ids_ = with_edge_ids;
  disjoint_ = disjoint;
  num_seeds_ = 0;
  num_announced_ = num_seeds;
  tree_times_.clear();
  for (NodeState& node : nodes_) {
    node.max_local = max_local(node, num_seeds, max_new_nodes, disjoint);
    if (disjoint) {
      // Trees and nodes are told apart by one number.
      if (num_seeds > std::numeric_limits<int64_t>::max() / std::max<int64_t>(node.num_nodes, 1))
        throw InvalidArgument(message("num_seeds: expected fewer trees in a disjoint batch, got ", num_seeds, " over ",
                                      node.num_nodes, " nodes: their product exceeds 2^63"));
      node.tree_table.begin(std::max(num_seeds, max_new_nodes));
    } else {
      std::visit([&](auto& table) { table.begin(node.max_local); }, node.table);
    }
    node.nodes.clear();
    if (disjoint) node.trees.clear();
    node.frontier_begin = node.frontier_end = 0;
    node.per_hop.assign(1, 0);
  }
  for (EdgeState& edge : edges_) {
    edge.runs.clear();
    if (with_edge_ids) edge.edge_ids.clear();
    edge.hop_edges = 0;
    edge.per_hop.clear();
  }
}

Tensor BatchBuilder::add_seeds(int node_type, const Tensor& seeds, const Tensor& times, bool unique) {
  check_index_vector(seeds, "seeds");
  node_state(node_type);
  NodeState& node = nodes_[node_type];
  const int64_t count = seeds.shape[0];
  if (node.per_hop.size() > 1) throw InvalidArgument("seeds: expected before the first hop, got them after it");
  if (num_seeds_ + count > num_announced_)
    throw InvalidArgument(message("seeds: begin() was told ", num_announced_, ", got ", num_seeds_ + count));
  if (times.defined()) {
    check_index_vector(times, "times");
    if (!disjoint_) throw InvalidArgument("times: expected a disjoint batch, one tree for the time of each seed");
    if (times.dtype != kInt64 || times.shape != seeds.shape)
      throw InvalidArgument(message("times: expected int64 [", count, "], one per seed"));
  }
  if (static_cast<int64_t>(tree_times_.size()) != (times.defined() ? num_seeds_ : 0))
    throw InvalidArgument("times: expected for all seeds of a batch or for none");
  if (times.defined()) tree_times_.insert(tree_times_.end(), times.as<int64_t>(), times.as<int64_t>() + count);
  Tensor locals = empty({count}, kInt64);
  node.nodes.reserve(node.nodes.size() + count + 1);
  if (disjoint_) node.trees.reserve(node.nodes.size() + count + 1);
  dispatch_index(seeds.dtype, "seeds", [&](auto tag) {
    const auto* ids = seeds.as<decltype(tag)>();
    for (int64_t i = 0; i < count; ++i)
      if (ids[i] < 0 || ids[i] >= node.num_nodes)
        throw UnknownId(
            message("input_nodes: node id ", static_cast<int64_t>(ids[i]), " is outside [0, ", node.num_nodes, ")"));
    if (!disjoint_) prefetch(node.table, ids, count);
    for (int64_t i = 0; i < count; ++i) locals.as<int64_t>()[i] = add_seed(node, ids[i], unique);
  });
  node.frontier_end = node.per_hop[0] = node.nodes.size();
  return locals;
}

int64_t BatchBuilder::add_seed(NodeState& node, int64_t id, bool unique) {
  const int64_t next = node.nodes.size();
  const int64_t tree = num_seeds_++;
  uint32_t is_new = 1, local;
  if (disjoint_) {
    local = node.tree_table.insert(tree * node.num_nodes + id, static_cast<uint32_t>(next), &is_new);
    node.trees.data()[next] = tree;
  } else {
    local = std::visit([&](auto& table) { return table.insert(id, static_cast<uint32_t>(next), &is_new); }, node.table);
  }
  if (!is_new && unique) return local;
  node.nodes.data()[next] = id;
  node.nodes.set_size(next + 1);
  if (disjoint_) node.trees.set_size(next + 1);
  return next;
}

BatchBuilder::EdgeState& BatchBuilder::edge_state(int edge_type) {
  if (edge_type < 0 || edge_type >= static_cast<int>(edges_.size()))
    throw InvalidArgument(message("edge_type: ", edge_type, " is outside [0, ", edges_.size(), ")"));
  return edges_[edge_type];
}

const BatchBuilder::NodeState& BatchBuilder::node_state(int node_type) const {
  if (node_type < 0 || node_type >= static_cast<int>(nodes_.size()))
    throw InvalidArgument(message("node_type: ", node_type, " is outside [0, ", nodes_.size(), ")"));
  return nodes_[node_type];
}

Tensor BatchBuilder::frontier_times(const NodeState& node) const {
  if (tree_times_.empty()) return {};
  const int64_t count = node.frontier_end - node.frontier_begin;
  Tensor times = empty({count}, kInt64);
  const int64_t* trees = node.trees.data() + node.frontier_begin;
  for (int64_t i = 0; i < count; ++i) times.as<int64_t>()[i] = tree_times_[trees[i]];
  return times;
}

HopNodes BatchBuilder::frontier(int node_type) const {
  const NodeState& node = node_state(node_type);
  HopNodes out;
  out.ids = node.nodes.view(node.frontier_begin, node.frontier_end);
  if (disjoint_) out.trees = node.trees.view(node.frontier_begin, node.frontier_end);
  out.times = frontier_times(node);
  return out;
}

int64_t BatchBuilder::frontier_size(int node_type) const {
  const NodeState& node = node_state(node_type);
  return node.frontier_end - node.frontier_begin;
}

void BatchBuilder::reserve(EdgeState& edge, int64_t count) {
  if (with_edge_ids_) edge.edge_ids.reserve(edge.edge_ids.size() + count);
  GrowingArray& nodes = nodes_[edge.spec.neighbor_type].nodes;
  nodes.reserve(nodes.size() + count + 1);  // one spare: the branch-free insert writes before it knows
  if (disjoint_) nodes_[edge.spec.neighbor_type].trees.reserve(nodes.size() + count + 1);
  edge.hop_edges += count;
}

template <typename Id, typename TreeOf>
void BatchBuilder::relabel(EdgeState& edge, const Id* ids, int64_t count, uint32_t* locals, TreeOf tree_of) {
  NodeState& node = nodes_[edge.spec.neighbor_type];
  int64_t* nodes = node.nodes.data();
  int64_t next = node.nodes.size();
  if (disjoint_) {
    int64_t* trees = node.trees.data();
    if (next + count > std::numeric_limits<uint32_t>::max())
      throw InvalidArgument("batch: a disjoint batch may hold fewer than 2^32 nodes of a type; use smaller batches");
    auto table = node.tree_table.view(count);
    const auto key = [&](int64_t e) { return tree_of(e) * node.num_nodes + static_cast<int64_t>(ids[e]); };
    for (int64_t e = 0; e < count; ++e) {
      if (e + kRelabelAhead < count) table.prefetch(key(e + kRelabelAhead));
      const int64_t id = ids[e], tree = tree_of(e);
      uint32_t is_new;
      locals[e] = table.insert(key(e), static_cast<uint32_t>(next), &is_new);
      nodes[next] = id;
      trees[next] = tree;
      next += is_new;
    }
    node.trees.set_size(next);
  } else {
    std::visit(
        [&](auto& members) {
          auto table = members.view(count);
          for (int64_t e = 0; e < std::min(kRelabelAhead, count); ++e) table.prefetch(ids[e]);
          for (int64_t e = 0; e < count; ++e) {
            if (e + kRelabelAhead < count) table.prefetch(ids[e + kRelabelAhead]);
            const int64_t id = ids[e];
            uint32_t is_new;
            locals[e] = table.insert(id, static_cast<uint32_t>(next), &is_new);
            nodes[next] = id;
            next += is_new;
          }
        },
        node.table);
  }
  node.nodes.set_size(next);
  check_num_nodes(node);
}

void BatchBuilder::check_num_nodes(NodeState& node) const {
  const int64_t limit = std::min<int64_t>(node.max_local, std::numeric_limits<uint32_t>::max());
  if (node.nodes.size() <= limit) return;
  std::visit([](auto& table) { table.spoil(); }, node.table);
  throw InvalidArgument(message("batch: expected at most ", limit, " nodes of a type, got ", node.nodes.size()));
}

template <typename Graph>
void BatchBuilder::sample_frontier(EdgeState& edge, const Graph& graph, uint64_t key, ThreadPool& pool) {
  const NodeState& seeds = nodes_[edge.spec.seed_type];
  const int64_t first_node = seeds.frontier_begin, count = seeds.frontier_end - first_node;
  const int64_t num_blocks = (count + kBlock - 1) / kBlock;
  if (static_cast<int64_t>(candidates_.size()) < count) candidates_.resize(count);
  block_offsets_.resize(num_blocks + 1);
  Candidates* candidates = candidates_.data();
  int64_t* offsets = block_offsets_.data();
  const bool is_ahead = graph.asks_ahead();
  pool.parallel_for(num_blocks, kCountGrain, [&](int64_t begin, int64_t end) {
    graph.read_candidates(seeds.nodes.data() + first_node, begin * kBlock, std::min(end * kBlock, count), candidates);
    for (int64_t block = begin; block < end; ++block) {
      int64_t sum = 0;
      for (int64_t i = block * kBlock; i < std::min((block + 1) * kBlock, count); ++i)
        sum += graph.piece(i).picker.num_picks(candidates[i]);
      offsets[block + 1] = sum;
    }
  });
  if (is_ahead) ask_for_rows(graph, candidates, count, with_edge_ids_);
  offsets[0] = 0;
  int64_t largest = 0;  // block, in edges
  for (int64_t block = 0; block < num_blocks; ++block) {
    largest = std::max(largest, offsets[block + 1]);
    offsets[block + 1] += offsets[block];
  }
  const int64_t total = offsets[num_blocks];
  reserve(edge, total);
  const EdgeRuns::Added to = edge.runs.extend(first_node, count, total);
  int64_t* edge_ids = nullptr;
  if (with_edge_ids_) {
    edge_ids = edge.edge_ids.data() + edge.edge_ids.size();
    edge.edge_ids.set_size(edge.edge_ids.size() + total);
  }
  using Index = typename Graph::Index;
  Index* neighbors;  // lie where their local ids are wanted, if these are as long
  if constexpr (sizeof(Index) == sizeof(*to.rows)) {
    neighbors = reinterpret_cast<Index*>(to.rows);
  } else {
    if (static_cast<int64_t>(wide_ids_.size()) < total) wide_ids_.resize(total);
    neighbors = wide_ids_.data();
  }
  const bool names_nodes = disjoint_ || Graph::kInPieces;
  if (names_nodes && static_cast<int64_t>(edge_nodes_.size()) < total) edge_nodes_.resize(total);
  uint32_t* const nodes = names_nodes ? edge_nodes_.data() : nullptr;
  const int64_t* const ids = seeds.nodes.data() + first_node;  // reserve() may have moved them
  const int64_t* const trees = disjoint_ ? seeds.trees.data() + first_node : nullptr;
  const PickKernel<Graph> kernel{
      {graph, key, candidates, ids, trees, count}, offsets, to.counts, neighbors, nodes, edge_ids,
      nodes_[edge.spec.neighbor_type].num_nodes};
  OrderedBlocks blocks(num_blocks);
  const int64_t waited_before = pages_waited_for();
  pool.on_all_threads(num_blocks, [&] {
    // Three blocks are under way in each thread, one at each step, so that what a step asks of memory has arrived
    // when the next step needs it.
    int64_t picked = -1, read = -1;
    const std::unique_ptr<int64_t[]> room(new int64_t[2 * largest]);
    int64_t *positions = room.get(), *picked_positions = positions + largest;
    do {
      const int64_t block = blocks.take();
      if (block >= 0) kernel.pick(block, positions);
      if (picked >= 0) kernel.read(picked, picked_positions);
      if (read >= 0)
        blocks.finish(read, [&](int64_t begin, int64_t end) {
          const int64_t first = offsets[begin];
          relabel(edge, neighbors + first, offsets[end] - first, to.rows + first,
                  [&, first](int64_t e) { return trees[nodes[first + e]]; });
        });
      read = picked;
      picked = block;
      std::swap(positions, picked_positions);
    } while (picked >= 0 || read >= 0);
  });
  // The other threads wait as much as this one.
  graph.ends_hop(is_ahead, count, (pages_waited_for() - waited_before) * pool.size());
}

void BatchBuilder::check_extents(const EdgeState& edge, int64_t num_rows, int64_t num_cols) const {
  const int64_t rows = nodes_[edge.spec.seed_type].num_nodes, cols = nodes_[edge.spec.neighbor_type].num_nodes;
  if (num_rows != rows || num_cols != cols)
    throw InvalidArgument(
        message("csr: expected ", rows, " rows and ", cols, " columns, got ", num_rows, " and ", num_cols));
}

void BatchBuilder::sample_hop(int edge_type, const Csr& csr, const HopDraw& draw, ThreadPool& pool) {
  EdgeState& edge = edge_state(edge_type);
  check_draw(csr, draw, !tree_times_.empty());
  check_extents(edge, csr.num_rows(), csr.num_cols);
  if (draw.fanout == 0) return;
  const Tensor times = frontier_times(nodes_[edge.spec.seed_type]);
  with_picker(csr, draw, times.defined() ? times.as<int64_t>() : nullptr, [&](const auto& picker) {
    dispatch_index(csr.indices.dtype, "indices", [&](auto tag) {
      using Piece = HopPiece<std::decay_t<decltype(picker)>, decltype(tag)>;
      sample_frontier(edge, WholeHopGraph<Piece>(Piece(csr, picker)), draw.key, pool);
    });
  });
}

void BatchBuilder::sample_hop(int edge_type, const CsrPieces& graph, const HopDraw& draw, ThreadPool& pool) {
  EdgeState& edge = edge_state(edge_type);
  const NodeState& seeds = nodes_[edge.spec.seed_type];
  for (const auto& csr : graph.pieces) check_draw(*csr, draw, !tree_times_.empty());
  check_extents(edge, graph.num_rows(), graph.num_cols());
  if (draw.fanout == 0) return;
  const Tensor times = frontier_times(seeds);
  const int64_t* node_times = times.defined() ? times.as<int64_t>() : nullptr;
  owners_.resize(std::max<int64_t>(owners_.size(), seeds.frontier_end - seeds.frontier_begin));
  with_picker(*graph.pieces[0], draw, node_times, [&](const auto& first) {
    dispatch_index(graph.index_dtype(), "indices", [&](auto tag) {
      using Picker = std::decay_t<decltype(first)>;
      using Piece = HopPiece<Picker, decltype(tag)>;
      std::vector<Piece> pieces;
      for (const auto& csr : graph.pieces)
        with_picker(*csr, draw, node_times, [&](const auto& picker) {
          // One draw has one kind of picker, whatever the graph.
          if constexpr (std::is_same_v<std::decay_t<decltype(picker)>, Picker>) pieces.emplace_back(*csr, picker);
        });
      sample_frontier(edge, HopGraphInPieces<Piece>(std::move(pieces), *graph.book, owners_.data()), draw.key, pool);
    });
  });
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
  if (with_edge_ids_) {
    check_index_vector(edge_ids, "edge_ids");
    if (edge_ids.shape != neighbors.shape)
      throw InvalidArgument(
          message("edge_ids: expected [", total, "], one per neighbor, got [", edge_ids.shape[0], "]"));
  }
  const Tensor edges = with_edge_ids_ ? as_int64(edge_ids) : Tensor{};
  const int64_t* of_node = counts.as<int64_t>();
  dispatch_index(neighbors.dtype, "neighbors", [&](auto tag) {
    int64_t at = 0;
    add_runs<decltype(tag)>(edge, total, [&]() -> AnsweredEdges<decltype(tag)> {
      const int64_t from = at, count = *of_node++;
      at += count;
      return {neighbors.as<decltype(tag)>() + from, with_edge_ids_ ? edges.as<int64_t>() + from : nullptr, count,
              total - from};
    });
  });
}

void BatchBuilder::add_hop(int edge_type, const Split& frontier, const std::vector<NeighborPart>& parts,
                           int64_t max_count) {
  EdgeState& edge = edge_state(edge_type);
  const NodeState& seeds = nodes_[edge.spec.seed_type];
  const int64_t num_seeds = seeds.frontier_end - seeds.frontier_begin;
  if (frontier.owners.numel() != num_seeds)
    throw InvalidArgument(message("frontier: expected ", num_seeds, " nodes, got ", frontier.owners.numel()));
  AnswerReader answers(frontier, parts, max_count);
  if (with_edge_ids_ && answers.total() > 0 && !answers.has_edge_ids())
    throw InvalidArgument(message("edge_ids: expected [", answers.total(), "], one per neighbor, got none"));
  dispatch_index(answers.neighbor_dtype(), "neighbors", [&](auto tag) {
    add_runs<decltype(tag)>(edge, answers.total(), [&]() -> AnsweredEdges<decltype(tag)> {
      const auto [part, from, count] = answers.next();
      const auto* ids = answers.neighbors<decltype(tag)>(part) + from;
      __builtin_prefetch(ids + kReadAhead);
      return {ids, with_edge_ids_ ? answers.edge_ids(part) + from : nullptr, count, answers.num_neighbors(part) - from};
    });
  });
}

template <typename Id, typename Read>
void BatchBuilder::add_runs(EdgeState& edge, int64_t total, Read read) {
  const NodeState& seeds = nodes_[edge.spec.seed_type];
  const int64_t limit = nodes_[edge.spec.neighbor_type].num_nodes;
  reserve(edge, total);
  const int64_t first_node = seeds.frontier_begin, num_seeds = seeds.frontier_end - first_node;
  EdgeRuns::Added to = edge.runs.extend(first_node, num_seeds, total);
  StagedIds<Id> staged;
  const auto relabel_staged = [&] {
    check_added(staged.ids, staged.size, limit);
    relabel(edge, staged.ids, staged.size, to.rows, [&](int64_t e) { return staged.trees[e]; });
    to.rows += staged.size;
    staged.size = 0;
  };
  for (int64_t node = first_node; node < seeds.frontier_end; ++node) {
    AnsweredEdges<Id> given = read();
    *to.counts++ = static_cast<uint32_t>(given.count);
    if (given.edge_ids != nullptr) {
      const int64_t before = edge.edge_ids.size();
      std::copy_n(given.edge_ids, given.count, edge.edge_ids.data() + before);
      edge.edge_ids.set_size(before + given.count);
    }
    for (;;) {
      const int64_t count = std::min(given.count, StagedIds<Id>::kRoom - staged.size);
      staged.add(given.ids, count, given.readable);
      if (disjoint_) std::fill_n(staged.trees + staged.size, count, seeds.trees.data()[node]);
      staged.size += count;
      if (count == given.count) break;
      relabel_staged();
      given.ids += count;
      given.count -= count;
      given.readable -= count;
    }
  }
  relabel_staged();
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

bool BatchBuilder::finish_writes(bool leaves_edges) const {
  return !leaves_edges && std::any_of(edges_.begin(), edges_.end(),
                                      [](const EdgeState& edge) { return edge.runs.size() >= kManyEdges; });
}

SampledSubgraph BatchBuilder::finish(bool leaves_edges, ThreadPool* pool) {
  SampledSubgraph out;
  for (NodeState& node : nodes_) {
    out.nodes.push_back(node.nodes.view(0, node.nodes.size()));
    out.trees.push_back(disjoint_ ? node.trees.view(0, node.trees.size()) : Tensor{});
    out.num_sampled_nodes.push_back(node.per_hop);
  }
  for (EdgeState& edge : edges_) {
    const int64_t count = edge.runs.size();
    const bool is_left = leaves_edges && count >= kManyEdges;
    out.unwritten.push_back(is_left ? edge.runs.share() : EdgeRuns());
    Tensor pairs = is_left ? Tensor{} : empty({2, count}, kInt64);
    if (!is_left) edge.runs.write(pairs.as<int64_t>(), count >= kManyEdges ? pool : nullptr);
    out.edge_index.push_back(pairs);
    out.rows.push_back(is_left ? Tensor{} : half(pairs, 0));
    out.cols.push_back(is_left ? Tensor{} : half(pairs, count));
    out.edge_ids.push_back(with_edge_ids_ ? edge.edge_ids.view(0, count) : Tensor{});
    out.num_sampled_edges.push_back(edge.per_hop);
  }
  return out;
}

}  // namespace gld

#include "sampling/cuda/batch_layout.h"

#include <algorithm>
#include <limits>

#include "common/cuda/block_layout.h"
#include "common/cuda/group_scan.h"
#include "common/cuda/launch_list.h"
#include "sampling/candidates.h"
#include "sampling/cuda/long_rows.h"
#include "sampling/cuda/ordered_table.h"

namespace gld {
namespace {

// Of numbers that are not negative; the largest number where the product is larger.
int64_t saturated_product(int64_t a, int64_t b) {
  return b > 0 && a > std::numeric_limits<int64_t>::max() / b ? std::numeric_limits<int64_t>::max() : a * b;
}

class LayoutMaker {
 public:
  explicit LayoutMaker(const BatchShape& shape) : shape_(shape), types_(shape.num_nodes.size()) {
    out_.nodes.resize(types_.size());
    out_.edges.resize(shape.edge_types.size());
    for (auto& edges : out_.edges) edges.counters.push_back(0);
  }

  BatchLayout make() {
    for (const SeedShape& seeds : shape_.seeds) add_seeds(seeds);
    out_.seed_rounds = rounds_of(0, out_.seed_steps);
    end_hop(true);
    for (size_t hop = 0; hop < shape_.fanouts.size(); ++hop) {
      const size_t first = out_.hop_steps.size();
      for (size_t type = 0; type < shape_.edge_types.size(); ++type)
        if (shape_.fanouts[hop][type] != 0) add_hop(static_cast<int>(hop), static_cast<int>(type));
      for (BatchLayout::Round& round : rounds_of(first, out_.hop_steps)) out_.hop_rounds.push_back(std::move(round));
      for (size_t type = 0; type < shape_.edge_types.size(); ++type)
        out_.edges[type].counters.push_back(newest_edges(type));
      end_hop(false);
    }
    place();
    return std::move(out_);
  }

 private:
  struct TypeState {
    int frontier_begin = 0, frontier_end = 0, newest = 0;                 // counters
    int64_t num_seeds = 0, max_frontier = 0, max_new = 0, max_added = 0;  // max_new of this hop, max_added of all hops
  };

  int newest_edges(size_t type) const {
    for (size_t step = out_.hop_steps.size(); step-- > 0;)
      if (out_.hop_steps[step].edge_type == static_cast<int>(type)) return out_.hop_steps[step].edges_after;
    return 0;
  }

  void add_seeds(const SeedShape& seeds) {
    TypeState& type = types_[seeds.node_type];
    const int num_seeds = out_.num_counters++;
    out_.seed_steps.push_back({seeds.node_type, seeds.count, num_trees_, seeds.unique, num_seeds, 0, 0});
    type.num_seeds += seeds.count;
    type.max_new += seeds.count;
    seeds_are_distinct_ = seeds_are_distinct_ && seeds.unique;
    num_trees_ += seeds.count;
  }

  // How often a node of the graph may be found at most: once in a batch, or once in each tree.
  int64_t copies() const { return shape_.disjoint ? num_trees_ : 1; }
  int64_t max_found(int type) const { return saturated_product(copies(), shape_.num_nodes[type]); }

  // What padding has room for; the largest number where nobody said.
  int64_t most_edges(int type) const { return given(shape_.padding ? shape_.padding->max_edges[type] : -1); }
  int64_t most_nodes(int type) const { return given(shape_.padding ? shape_.padding->max_nodes[type] - 1 : -1); }
  static int64_t given(int64_t bound) { return bound < 0 ? std::numeric_limits<int64_t>::max() : bound; }

  // Edges that the frontier of one step may have: its own bound, and that of the graph where no edge comes twice.
  int64_t max_edges(int hop, int type, int64_t fanout, int64_t max_frontier) const {
    const EdgeTypeShape& edge_type = shape_.edge_types[type];
    int64_t per_node = edge_type.max_degree;
    if (fanout != kTakeAll) per_node = edge_type.replace ? (per_node > 0 ? fanout : 0) : std::min(per_node, fanout);
    int64_t bound = saturated_product(max_frontier, per_node);
    bound = std::min(bound, most_edges(type));
    const bool nodes_differ = shape_.disjoint || hop > 0 || seeds_are_distinct_;
    if (nodes_differ && (fanout == kTakeAll || !edge_type.replace))
      bound = std::min(bound, saturated_product(copies(), edge_type.num_edges));
    if (bound > kMaxBatchEdges)
      throw InvalidArgument(message("num_neighbors: hop ", hop, " may have more than ", kMaxBatchEdges,
                                    " edges; use smaller fan-outs or batches"));
    return bound;
  }

  void add_hop(int hop, int edge_type) {
    const EdgeTypeShape& edges = shape_.edge_types[edge_type];
    const TypeState& seeds = types_[edges.spec.seed_type];
    TypeState& found = types_[edges.spec.neighbor_type];
    const int64_t fanout = shape_.fanouts[hop][edge_type];
    const int64_t max_edges = this->max_edges(hop, edge_type, fanout, seeds.max_frontier);
    if (max_edges == 0) return;
    const int edges_before = newest_edges(edge_type), edges_after = out_.num_counters++;
    out_.hop_steps.push_back({hop, edge_type, fanout, seeds.frontier_begin, seeds.frontier_end, edges_before,
                              edges_after, seeds.max_frontier, max_edges, 0});
    out_.hop_steps.back().has_long_rows = !edges.replace && fanout != kTakeAll && edges.max_degree > kLeastLongRow;
    found.max_new += max_edges;
    int64_t& capacity = out_.edges[edge_type].capacity;
    const int64_t added = std::min(max_edges, most_edges(edge_type) - capacity);
    found.max_added += added;
    capacity += added;
  }

  int type_found(const BatchLayout::SeedStep& step) const { return step.node_type; }
  int type_found(const BatchLayout::HopStep& step) const {
    return shape_.edge_types[step.edge_type].spec.neighbor_type;
  }
  static int64_t max_found_by(const BatchLayout::SeedStep& step) { return step.count; }
  static int64_t max_found_by(const BatchLayout::HopStep& step) { return step.max_edges; }

  // The steps from `first` on in rounds, with a scan for each type of node that one finds.
  template <typename Step>
  std::vector<BatchLayout::Round> rounds_of(size_t first, const std::vector<Step>& steps) {
    std::vector<BatchLayout::Round> rounds;
    for (size_t at = first; at < steps.size(); ++at) {
      if ((at - first) % kMaxTogether == 0) rounds.emplace_back();
      BatchLayout::Round& round = rounds.back();
      round.steps.push_back(at);
      const int type = type_found(steps[at]);
      auto found = std::find_if(round.new_nodes.begin(), round.new_nodes.end(),
                                [type](const auto& nodes) { return nodes.node_type == type; });
      if (found == round.new_nodes.end()) {
        const int before = types_[type].newest;
        types_[type].newest = out_.num_counters++;
        found = round.new_nodes.insert(found, {type, before, types_[type].newest, 0, {}, 0});
      }
      found->max_count += max_found_by(steps[at]);
      found->steps.push_back(at);
    }
    return rounds;
  }

  void end_hop(bool after_seeds) {
    for (size_t t = 0; t < types_.size(); ++t) {
      TypeState& type = types_[t];
      type.frontier_begin = type.frontier_end;
      type.frontier_end = type.newest;
      const int node_type = static_cast<int>(t);
      type.max_frontier =
          after_seeds ? type.max_new : std::min({type.max_new, max_found(node_type), most_nodes(node_type)});
      type.max_new = 0;
      out_.nodes[t].counters.push_back(type.newest);
    }
  }

  size_t take_result(int64_t count) { return result_.take<int64_t>(count); }
  size_t take_flags(int64_t count) { return result_.take<bool>(count); }
  template <typename T>
  size_t take_scratch(int64_t count) {
    return scratch_.take<T>(count);
  }

  void place() {
    out_.counters = take_result(out_.num_counters + 1);
    out_.status = out_.counters + out_.num_counters * sizeof(int64_t);
    for (auto& step : out_.seed_steps) step.local_ids = take_result(step.count);
    for (size_t t = 0; t < types_.size(); ++t) place_nodes(static_cast<int>(t));
    for (size_t t = 0; t < out_.edges.size(); ++t) place_edges(static_cast<int>(t));
    if (shape_.padding) place_seeds();
    out_.filled = scratch_.num_bytes;
    for (auto& nodes : out_.nodes)
      nodes.slots = take_scratch<OrderedTable::Slot>(static_cast<int64_t>(nodes.num_slots));
    for (auto& step : out_.hop_steps) {
      step.sums = take_sums(step.max_frontier);
      if (step.has_long_rows) step.num_long_rows = take_scratch<uint64_t>(1);
    }
    for (auto* rounds : {&out_.seed_rounds, &out_.hop_rounds})
      for (auto& round : *rounds)
        for (auto& nodes : round.new_nodes) nodes.sums = take_sums(nodes.max_count);
    out_.num_filled_bytes = scratch_.num_bytes - out_.filled;
    place_rounds();
    out_.num_bytes = result_.num_bytes;
    out_.num_scratch_bytes = scratch_.num_bytes;
  }

  size_t take_sums(int64_t max_count) { return take_scratch<uint64_t>(TileSums::num_words(max_count)); }

  // Memory of one round, for each in turn.
  void place_rounds() {
    const BlockLayout before = scratch_;
    size_t largest = 0;
    for (const auto& round : out_.seed_rounds) {
      scratch_ = before;
      for (size_t step : round.steps) out_.seed_steps[step].slots = take_scratch<int64_t>(out_.seed_steps[step].count);
      largest = std::max(largest, scratch_.num_bytes);
    }
    for (const auto& round : out_.hop_rounds) {
      scratch_ = before;
      int64_t number = 0;
      for (size_t at : round.steps) {
        BatchLayout::HopStep& step = out_.hop_steps[at];
        step.number = number;
        number += step.max_edges;
        step.candidates = take_scratch<Candidates>(step.max_frontier);
        step.offsets = take_scratch<int64_t>(step.max_frontier + 1);
        step.slots = take_scratch<int64_t>(step.max_edges);
        if (step.has_long_rows) step.long_rows = take_scratch<int64_t>(step.max_frontier);
      }
      largest = std::max(largest, scratch_.num_bytes);
    }
    scratch_.num_bytes = std::max(largest, before.num_bytes);
  }

  void place_nodes(int t) {
    const TypeState& type = types_[t];
    BatchLayout::Nodes& nodes = out_.nodes[t];
    const int64_t max_keys = type.num_seeds + std::min(type.max_added, max_found(t));
    nodes.capacity = nodes.size = max_keys;
    if (shape_.padding) {
      nodes.capacity = shape_.padding->max_nodes[t] < 0 ? max_keys : most_nodes(t);
      nodes.size = nodes.capacity + 1;
      nodes.mask = take_flags(nodes.size);
    }
    nodes.num_slots = OrderedTable::num_slots_for(max_keys);
    nodes.ids = take_result(nodes.size);
    if (shape_.disjoint) nodes.trees = take_result(nodes.size);
  }

  void place_edges(int t) {
    BatchLayout::Edges& edges = out_.edges[t];
    if (shape_.padding) {
      if (shape_.padding->max_edges[t] >= 0) edges.capacity = most_edges(t);
      edges.mask = take_flags(edges.capacity);
    }
    edges.rows = take_result(2 * edges.capacity);
    edges.cols = shape_.padding ? edges.rows + edges.capacity * sizeof(int64_t) : take_scratch<int64_t>(edges.capacity);
    if (shape_.with_edge_ids) edges.edge_ids = take_result(edges.capacity);
  }

  void place_seeds() {
    BatchLayout::Seeds& seeds = out_.seeds;
    seeds.count = shape_.seeds[0].count;
    seeds.positions = take_result(seeds.count);
    seeds.times = take_result(seeds.count);
    seeds.mask = take_flags(seeds.count);
    seeds.ids = take_scratch<int64_t>(seeds.count);
  }

  const BatchShape& shape_;
  std::vector<TypeState> types_;
  int64_t num_trees_ = 0;
  bool seeds_are_distinct_ = true;
  BlockLayout result_, scratch_;
  BatchLayout out_;
};

void check_shape(const BatchShape& shape) {
  const int num_types = static_cast<int>(shape.num_nodes.size());
  const auto check_type = [num_types](int type, const char* name) {
    if (type < 0 || type >= num_types)
      throw InvalidArgument(message(name, ": node type ", type, " is outside [0, ", num_types, ")"));
  };
  for (const EdgeTypeShape& edges : shape.edge_types) {
    check_type(edges.spec.seed_type, "edge_types");
    check_type(edges.spec.neighbor_type, "edge_types");
  }
  for (const SeedShape& seeds : shape.seeds) check_type(seeds.node_type, "seeds");
  for (const auto& hop : shape.fanouts) {
    if (hop.size() != shape.edge_types.size())
      throw InvalidArgument("num_neighbors: expected one fan-out per edge type in every hop");
    for (int64_t fanout : hop)
      if (fanout < kTakeAll)
        throw InvalidArgument(message("num_neighbors: expected -1 (all neighbors) or at least 0, got ", fanout));
  }
}

void check_padding(const BatchShape& shape) {
  const Padding& padding = *shape.padding;
  if (padding.max_nodes.size() != shape.num_nodes.size() || padding.max_edges.size() != shape.edge_types.size())
    throw InvalidArgument("padding: expected a number per node type, and one per edge type");
  if (shape.seeds.size() != 1 || shape.seeds[0].unique)
    throw InvalidArgument("padding: expected one list of seeds that are all kept");
  for (size_t type = 0; type < shape.num_nodes.size(); ++type) {
    const int64_t seeds = static_cast<int>(type) == shape.seeds[0].node_type ? shape.seeds[0].count : 0;
    if (padding.max_nodes[type] >= 0 && padding.max_nodes[type] <= seeds)
      throw InvalidArgument(message("max_nodes: expected more than the ", seeds,
                                    " seeds of a batch, one for padding at least, got ", padding.max_nodes[type],
                                    " for node type ", type));
  }
  for (int64_t most : padding.max_edges)
    if (most == 0) throw InvalidArgument("max_edges: expected at least 1, got 0");
}

}  // namespace

BatchLayout lay_out_batch(const BatchShape& shape) {
  check_shape(shape);
  if (shape.padding) check_padding(shape);
  return LayoutMaker(shape).make();
}

}  // namespace gld

// One batch as a chain of launches: what BatchBuilder makes on the host, bit by bit (batch_builder.h has the contract).
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "common/cuda/block_layout.h"
#include "common/cuda/group_scan.h"
#include "common/cuda/launch_list.h"
#include "sampling/cuda/batch_layout.h"
#include "sampling/cuda/batch_steps.h"
#include "sampling/cuda/padding_steps.h"

namespace gld {

// The input nodes of a loader, in whose order their batches are (see sampler/epochs/schedule.py).
struct ScheduledSeeds {
  Tensor nodes;  // int32 or int64 [n]
  Tensor times;  // int64 [n]; undefined: none
  bool shuffle = false;
};

// What a batch is sampled from and for; all memory is the device's, or that of the host where it can read it.
struct BatchInput {
  std::vector<Csr> graphs;  // per edge type, rows by global id
  std::vector<DrawMethod> how;
  std::vector<Tensor> seeds;  // per list of the shape, int32 or int64 [count]
  Tensor times;               // int64 [all seeds], of their trees; undefined: none
  Tensor counter;             // int64 [3]: seed, epoch, batch index
  ScheduledSeeds schedule;    // of padded batches, instead of seeds and times
  Tensor failure;             // of padded batches, int64 [3]: see SettleBatch
};

// An executor runs functors: for_each(max_count, body), for_each_group(max_groups, body), the same for a LaunchList of
// them at once, and fill(memory, byte, bytes), each of which sees all that those before it wrote. CudaExecutor does it
// on a stream.
template <typename Executor>
class BatchChain {
 public:
  BatchChain(const BatchShape& shape, const BatchLayout& layout, const BatchInput& input, BatchMemory memory,
             Executor& executor)
      : shape_(shape), layout_(layout), input_(input), memory_(memory), executor_(executor) {}

  void run() {
    executor_.fill(scratch<char>(layout_.filled), 0xFF, layout_.num_filled_bytes);
    executor_.fill(at<int64_t>(layout_.counters), 0, layout_.num_counters * sizeof(int64_t));
    executor_.fill(status(), 0xFF, sizeof(uint64_t));
    for (const auto& round : layout_.seed_rounds) add_seeds(round);
    for (const auto& round : layout_.hop_rounds) sample_hop(round);
    if (shape_.padding)
      pad();
    else
      pack_edges();
  }

 private:
  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(memory_.result + offset);
  }
  template <typename T>
  T* scratch(size_t offset) const {
    return reinterpret_cast<T*>(memory_.scratch + offset);
  }
  int64_t* counter(int number) const { return at<int64_t>(layout_.counters) + number; }
  uint64_t* status() const { return at<uint64_t>(layout_.status); }

  Room room_of_nodes(int type) const { return {layout_.nodes[type].capacity, status(), overflow_of(type)}; }
  Room room_of_edges(int type) const {
    return {layout_.edges[type].capacity, status(), overflow_of(layout_.nodes.size() + type)};
  }

  // Arrivals of a node type, without where they come from.
  Arrivals arrivals_of(int node_type) const {
    const BatchLayout::Nodes& nodes = layout_.nodes[node_type];
    Arrivals out{};
    out.table = {scratch<OrderedTable::Slot>(nodes.slots), nodes.num_slots - 1};
    out.num_nodes = shape_.num_nodes[node_type];
    out.disjoint = shape_.disjoint;
    return out;
  }

  Arrivals arrivals_of(const BatchLayout::SeedStep& step) const {
    Arrivals out = arrivals_of(step.node_type);
    out.number = out.first_tree = step.first_tree;
    out.slots = scratch<int64_t>(step.slots);
    out.ids = at<int64_t>(step.local_ids);
    out.first = counter(0);
    out.end = counter(step.num_seeds);
    out.keep_all = !step.unique;
    return out;
  }

  Arrivals arrivals_of(const BatchLayout::HopStep& step) const {
    const EdgeTypeSpec spec = shape_.edge_types[step.edge_type].spec;
    const BatchLayout::Edges& edges = layout_.edges[step.edge_type];
    Arrivals out = arrivals_of(spec.neighbor_type);
    out.number = step.number;
    out.slots = scratch<int64_t>(step.slots);
    out.ids = at<int64_t>(edges.rows);
    out.first = counter(step.edges_before);
    out.end = counter(step.edges_after);
    out.cols = cols_of(edges);
    out.col_trees = trees_of(layout_.nodes[spec.seed_type]);
    return out;
  }

  int64_t* trees_of(const BatchLayout::Nodes& nodes) const {
    return shape_.disjoint ? at<int64_t>(nodes.trees) : nullptr;
  }

  static int64_t max_arrivals(const BatchLayout::SeedStep& step) { return step.count; }
  static int64_t max_arrivals(const BatchLayout::HopStep& step) { return step.max_edges; }

  // What a round's steps have found becomes nodes of the batch, and takes their local ids.
  template <typename Step>
  void add_new_nodes(const BatchLayout::Round& round, const std::vector<Step>& steps) {
    LaunchList<RunScan<AddNewNodes>> adding;
    for (const BatchLayout::NewNodes& found : round.new_nodes) {
      const BatchLayout::Nodes& nodes = layout_.nodes[found.node_type];
      AddNewNodes add{{},
                      static_cast<int>(found.steps.size()),
                      at<int64_t>(nodes.ids),
                      trees_of(nodes),
                      counter(found.before),
                      counter(found.after),
                      room_of_nodes(found.node_type)};
      for (size_t source = 0; source < found.steps.size(); ++source)
        add.sources[source] = arrivals_of(steps[found.steps[source]]);
      adding.push_back(scan(found.max_count, add, found.sums));
    }
    executor_.for_each_group(adding);
    LaunchList<TakeLocalIds> taking;
    for (size_t step : round.steps) {
      const Arrivals arrivals = arrivals_of(steps[step]);
      if (!arrivals.keep_all) taking.push_back({max_arrivals(steps[step]), {arrivals}});
    }
    executor_.for_each(taking);
  }

  // A scan whose words are filled already.
  template <typename Scan>
  Bounded<RunScan<Scan>> scan(int64_t max_count, const Scan& functor, size_t sums) const {
    return {RunScan<Scan>::num_tiles(max_count), {functor, {scratch<uint64_t>(sums)}}};
  }

  void add_seeds(const BatchLayout::Round& round) {
    LaunchList<SetWord> counting;
    LaunchList<EnterSeeds> entering;
    for (size_t list : round.steps) {
      const BatchLayout::SeedStep& step = layout_.seed_steps[list];
      if (shape_.padding)
        take_seeds(step);
      else
        counting.push_back(
            {1, {reinterpret_cast<uint64_t*>(counter(step.num_seeds)), static_cast<uint64_t>(step.count)}});
      entering.push_back({step.count, {arrivals_of(step), seeds_of(list), status()}});
    }
    executor_.for_each(counting);
    executor_.for_each(entering);
    add_new_nodes(round, layout_.seed_steps);
  }

  IdReader seeds_of(size_t list) const {
    if (!shape_.padding) return IdReader(input_.seeds[list]);
    return IdReader(scratch<int64_t>(layout_.seeds.ids));
  }

  // Of the trees of disjoint batches; null where seeds have none.
  const int64_t* tree_times() const {
    if (!shape_.padding) return input_.times.as<int64_t>();
    return input_.schedule.times.defined() ? at<int64_t>(layout_.seeds.times) : nullptr;
  }

  void take_seeds(const BatchLayout::SeedStep& step) {
    const BatchLayout::Seeds& seeds = layout_.seeds;
    const ScheduledSeeds& schedule = input_.schedule;
    executor_.for_each(seeds.count, TakeSeeds{IdReader(schedule.nodes), schedule.times.as<int64_t>(),
                                              schedule.nodes.numel(), schedule.shuffle, input_.counter.as<int64_t>(),
                                              at<int64_t>(seeds.positions), scratch<int64_t>(seeds.ids),
                                              at<int64_t>(seeds.times), counter(step.num_seeds), seeds.count});
  }

  int64_t* cols_of(const BatchLayout::Edges& edges) const {
    return shape_.padding ? at<int64_t>(edges.cols) : scratch<int64_t>(edges.cols);
  }

  void pack_edges() {
    LaunchList<PackEdges> packing;
    for (const BatchLayout::Edges& edges : layout_.edges) {
      if (packing.size() == kMaxTogether) executor_.for_each(std::exchange(packing, {}));
      packing.push_back({edges.capacity, {at<int64_t>(edges.rows), cols_of(edges), counter(edges.counters.back())}});
    }
    executor_.for_each(packing);
  }

  void pad() {
    executor_.for_each(layout_.num_counters,
                       SettleBatch{status(), input_.counter.as<int64_t>(), input_.failure.as<int64_t>(),
                                   at<int64_t>(layout_.counters), layout_.num_counters});
    const BatchLayout::Seeds& seeds = layout_.seeds;
    executor_.for_each(seeds.count,
                       PadSeeds{at<int64_t>(seeds.positions), at<int64_t>(seeds.times), at<bool>(seeds.mask),
                                counter(layout_.seed_steps[0].num_seeds), seeds.count});
    for (const BatchLayout::Nodes& nodes : layout_.nodes)
      executor_.for_each(nodes.size, PadNodes{at<int64_t>(nodes.ids), trees_of(nodes), at<bool>(nodes.mask),
                                              counter(nodes.counters.back()), nodes.size, seeds.count});
    for (size_t type = 0; type < layout_.edges.size(); ++type) pad_edges(layout_.edges[type], type);
  }

  void pad_edges(const BatchLayout::Edges& edges, size_t type) {
    const auto padding_of = [this](int node_type) {
      const BatchLayout::Nodes& nodes = layout_.nodes[node_type];
      return PaddingNodes{counter(nodes.counters.back()), nodes.size};
    };
    const EdgeTypeSpec spec = shape_.edge_types[type].spec;
    executor_.for_each(
        edges.capacity,
        PadEdges{at<int64_t>(edges.rows), cols_of(edges), shape_.with_edge_ids ? at<int64_t>(edges.edge_ids) : nullptr,
                 at<bool>(edges.mask), counter(edges.counters.back()), padding_of(spec.neighbor_type),
                 padding_of(spec.seed_type), edges.capacity});
  }

  HopPicks picks_of(const BatchLayout::HopStep& step) const {
    const BatchLayout::Nodes& seeds = layout_.nodes[shape_.edge_types[step.edge_type].spec.seed_type];
    const Frontier frontier{at<int64_t>(seeds.ids),     trees_of(seeds), tree_times(), counter(step.frontier_begin),
                            counter(step.frontier_end), status()};
    return {frontier, NodePicker(input_.graphs[step.edge_type], step.fanout, input_.how[step.edge_type]),
            DrawCounter{input_.counter.as<int64_t>(), step.hop, step.edge_type}, scratch<Candidates>(step.candidates),
            scratch<int64_t>(step.offsets)};
  }

  LongRows long_rows_of(const BatchLayout::HopStep& step) const {
    if (!step.has_long_rows) return {};
    return {scratch<uint64_t>(step.num_long_rows), scratch<int64_t>(step.long_rows)};
  }

  void sample_hop(const BatchLayout::Round& round) {
    LaunchList<RunScan<CountPicks>> counting;
    LaunchList<PickTogether> picking;
    LaunchList<PickFromLongRows> reading;
    LaunchList<EnterNeighbors> entering;
    for (size_t number : round.steps) {
      const BatchLayout::HopStep& step = layout_.hop_steps[number];
      const int type = step.edge_type;
      const BatchLayout::Edges& edges = layout_.edges[type];
      const HopPicks hop = picks_of(step);
      const Arrivals arrivals = arrivals_of(step);
      const CountPicks count{
          hop, counter(step.edges_before), counter(step.edges_after), room_of_edges(type), status(), bad_row_of(type)};
      counting.push_back(scan(step.max_frontier, count, step.sums));
      const LongRows long_rows = long_rows_of(step);
      if (hop.picker.draws_together()) picking.push_back({step.max_frontier, {hop, arrivals, long_rows}});
      if (hop.picker.shares_long_rows() && step.has_long_rows)
        reading.push_back({step.max_frontier, {hop, arrivals, long_rows}});
      entering.push_back(
          {step.max_edges,
           {hop, arrivals, EdgeIdReader(input_.graphs[type]), cols_of(edges),
            shape_.with_edge_ids ? at<int64_t>(edges.edge_ids) : nullptr, status(), bad_neighbor_of(type)}});
    }
    executor_.for_each_group(counting);
    executor_.for_each(picking);
    executor_.for_each_group(reading);
    executor_.for_each(entering);
    add_new_nodes(round, layout_.hop_steps);
  }

  const BatchShape& shape_;
  const BatchLayout& layout_;
  const BatchInput& input_;
  BatchMemory memory_;
  Executor& executor_;
};

}  // namespace gld

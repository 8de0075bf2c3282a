// One batch as a chain of launches: what BatchBuilder makes on the host, bit by bit (batch_builder.h has the contract).
#pragma once
#include <cstdint>
#include <vector>

#include "common/cuda/block_layout.h"
#include "common/cuda/group_scan.h"
#include "sampling/cuda/batch_layout.h"
#include "sampling/cuda/batch_steps.h"

namespace gld {

// What a batch is sampled from and for; all memory is the device's, or that of the host where it can read it.
struct BatchInput {
  std::vector<Csr> graphs;  // per edge type, rows by global id
  std::vector<DrawMethod> how;
  std::vector<Tensor> seeds;  // per list of the shape, int32 or int64 [count]
  Tensor times;               // int64 [all seeds], of their trees; undefined: none
  Tensor counter;             // int64 [3]: seed, epoch, batch index
};

// An executor runs functors: for_each(max_count, body), for_each_group(max_groups, body), and fill(memory, byte,
// bytes), each of which sees all that those before it wrote. CudaExecutor does it on a stream.
template <typename Executor>
class BatchChain {
 public:
  BatchChain(const BatchShape& shape, const BatchLayout& layout, const BatchInput& input, BatchMemory memory,
             Executor& executor)
      : shape_(shape), layout_(layout), input_(input), memory_(memory), executor_(executor) {}

  void run() {
    executor_.fill(at<int64_t>(layout_.counters), 0, layout_.num_counters * sizeof(int64_t));
    executor_.fill(at<uint64_t>(layout_.status), 0xFF, sizeof(uint64_t));
    for (const auto& nodes : layout_.nodes)
      executor_.fill(scratch<char>(nodes.slots), 0xFF, nodes.num_slots * sizeof(OrderedTable::Slot));
    for (size_t list = 0; list < layout_.seed_steps.size(); ++list) add_seeds(layout_.seed_steps[list], list);
    for (const auto& step : layout_.hop_steps) sample_hop(step);
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

  // Arrivals of a node type, without where they come from.
  Arrivals arrivals_of(int node_type) const {
    const BatchLayout::Nodes& nodes = layout_.nodes[node_type];
    Arrivals out{};
    out.table = {scratch<OrderedTable::Slot>(nodes.slots), nodes.num_slots - 1};
    out.slots = scratch<int64_t>(layout_.arrival_slots);
    out.num_nodes = shape_.num_nodes[node_type];
    out.disjoint = shape_.disjoint;
    return out;
  }

  int64_t* trees_of(const BatchLayout::Nodes& nodes) const {
    return shape_.disjoint ? at<int64_t>(nodes.trees) : nullptr;
  }

  void add_new_nodes(const Arrivals& arrivals, int64_t max_count, int node_type, int before, int after, bool keep_all) {
    const BatchLayout::Nodes& nodes = layout_.nodes[node_type];
    const AddNewNodes add{arrivals, at<int64_t>(nodes.ids), trees_of(nodes), counter(before), counter(after), keep_all};
    run_scan(executor_, max_count, add, scratch<int64_t>(layout_.tile_sums));
    if (!keep_all) executor_.for_each(max_count, TakeLocalIds{arrivals});
  }

  void add_seeds(const BatchLayout::SeedStep& step, size_t list) {
    Arrivals arrivals = arrivals_of(step.node_type);
    arrivals.ids = at<int64_t>(step.local_ids);
    arrivals.first = counter(0);
    arrivals.end = counter(step.num_seeds);
    arrivals.first_tree = step.first_tree;
    executor_.for_each(1, SetCounter{counter(step.num_seeds), step.count});
    executor_.for_each(step.count, EnterSeeds{arrivals, IdReader(input_.seeds[list]), at<uint64_t>(layout_.status)});
    add_new_nodes(arrivals, step.count, step.node_type, step.nodes_before, step.nodes_after, !step.unique);
  }

  HopPicks picks_of(const BatchLayout::HopStep& step) const {
    const BatchLayout::Nodes& seeds = layout_.nodes[shape_.edge_types[step.edge_type].spec.seed_type];
    const Frontier frontier{at<int64_t>(seeds.ids),     trees_of(seeds),
                            input_.times.as<int64_t>(), counter(step.frontier_begin),
                            counter(step.frontier_end), at<uint64_t>(layout_.status)};
    return {frontier, NodePicker(input_.graphs[step.edge_type], step.fanout, input_.how[step.edge_type]),
            DrawCounter{input_.counter.as<int64_t>(), step.hop, step.edge_type},
            scratch<Candidates>(layout_.candidates), scratch<int64_t>(layout_.offsets)};
  }

  void sample_hop(const BatchLayout::HopStep& step) {
    const EdgeTypeSpec spec = shape_.edge_types[step.edge_type].spec;
    const BatchLayout::Edges& edges = layout_.edges[step.edge_type];
    const HopPicks hop = picks_of(step);
    Arrivals arrivals = arrivals_of(spec.neighbor_type);
    arrivals.ids = at<int64_t>(edges.rows);
    arrivals.first = counter(step.edges_before);
    arrivals.end = counter(step.edges_after);
    arrivals.cols = at<int64_t>(edges.cols);
    arrivals.col_trees = trees_of(layout_.nodes[spec.seed_type]);
    executor_.for_each(step.max_frontier, CountPicks{hop});
    run_scan(executor_, step.max_frontier, SumPicks{hop, counter(step.edges_before), counter(step.edges_after)},
             scratch<int64_t>(layout_.tile_sums));
    if (hop.picker.draws_together()) executor_.for_each(step.max_frontier, PickTogether{hop, arrivals});
    executor_.for_each(step.max_edges, EnterNeighbors{hop, arrivals, EdgeIdReader(input_.graphs[step.edge_type]),
                                                      at<int64_t>(edges.cols),
                                                      shape_.with_edge_ids ? at<int64_t>(edges.edge_ids) : nullptr});
    add_new_nodes(arrivals, step.max_edges, spec.neighbor_type, step.nodes_before, step.nodes_after, false);
  }

  const BatchShape& shape_;
  const BatchLayout& layout_;
  const BatchInput& input_;
  BatchMemory memory_;
  Executor& executor_;
};

}  // namespace gld

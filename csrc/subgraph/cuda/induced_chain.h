// The edges among the nodes of a batch in two chains of launches, with one number of edges read in between: what
// induced_edges() finds on the host, bit by bit (subgraph/induced.h).
#pragma once
#include <cstdint>
#include <vector>

#include "common/cuda/block_layout.h"
#include "sampling/batch_builder.h"
#include "subgraph/cuda/induced_steps.h"

namespace gld {

// What the size of the work depends on.
struct InducedShape {
  std::vector<int64_t> num_nodes;    // per node type, of the graph
  std::vector<int64_t> num_members;  // per node type, of the batch
  std::vector<EdgeTypeSpec> edge_types;
};

// All memory is the device's, or that of the host where it can read it.
struct InducedInput {
  std::vector<Csr> graphs;      // per edge type, rows by global id
  std::vector<Tensor> members;  // per node type, int32 or int64 [num_members], global
};

// Where one edge type's edges go.
struct InducedOutput {
  Tensor cols;      // int64 [number of edges], places among the members of the neighbors' type
  Tensor edge_ids;  // int64 [number of edges], or undefined
};

// Offsets are in bytes from the start of the block of results, or of scratch memory where they say so.
struct InducedLayout {
  struct Members {
    size_t slots = 0;  // OrderedTable::Slot [num_slots], in scratch memory
    uint64_t num_slots = 0;
  };
  struct Edges {
    size_t counts = 0;   // int64 [members of the seed type], edges of each
    size_t offsets = 0;  // the same, in scratch memory: edges of those before it
  };
  std::vector<Members> members;
  std::vector<Edges> edges;
  size_t totals = 0;  // int64 [edge types], numbers of edges
  size_t status = 0;  // uint64 [node types], behind them: first member outside the graph; all bits set: there is none
  size_t tile_sums = 0;  // scratch memory of scans
  size_t num_bytes = 0, num_scratch_bytes = 0;

  explicit InducedLayout(const InducedShape& shape)
      : members(shape.num_members.size()), edges(shape.edge_types.size()) {
    BlockLayout result, scratch;
    totals = result.take<int64_t>(static_cast<int64_t>(edges.size() + members.size()));
    status = totals + edges.size() * sizeof(int64_t);
    int64_t most = 0;
    for (size_t type = 0; type < members.size(); ++type) {
      const int64_t count = shape.num_members[type];
      members[type].num_slots = OrderedTable::num_slots_for(count);
      members[type].slots = scratch.take<OrderedTable::Slot>(static_cast<int64_t>(members[type].num_slots));
      most = count > most ? count : most;
    }
    for (size_t type = 0; type < edges.size(); ++type) {
      const int64_t count = shape.num_members[shape.edge_types[type].seed_type];
      edges[type] = {result.take<int64_t>(count), scratch.take<int64_t>(count)};
    }
    tile_sums = scratch.take<uint64_t>(TileSums::num_words(most));
    num_bytes = result.num_bytes;
    num_scratch_bytes = scratch.num_bytes;
  }
};

// Executors as in sampling/cuda/batch_chain.h. count() fills the result block; write() reads both blocks.
template <typename Executor>
class InducedChain {
 public:
  InducedChain(const InducedShape& shape, const InducedLayout& layout, const InducedInput& input, BatchMemory memory,
               Executor& executor)
      : shape_(shape), layout_(layout), input_(input), memory_(memory), executor_(executor) {}

  void count() {
    executor_.fill(memory_.result_at<char>(layout_.status), 0xFF, shape_.num_members.size() * sizeof(uint64_t));
    for (size_t type = 0; type < shape_.num_members.size(); ++type) enter_members(type);
    for (size_t type = 0; type < shape_.edge_types.size(); ++type) {
      const SearchedRows rows = rows_of(type);
      executor_.for_each_group(rows.num_ids, CountMatches{rows, counts(type)});
      run_scan(executor_, rows.num_ids,
               SumCounts{rows.num_ids, counts(type), offsets(type), memory_.result_at<int64_t>(layout_.totals) + type},
               memory_.scratch_at<uint64_t>(layout_.tile_sums));
    }
  }

  void write(const std::vector<InducedOutput>& out) {
    for (size_t type = 0; type < shape_.edge_types.size(); ++type) {
      const SearchedRows rows = rows_of(type);
      executor_.for_each_group(out[type].cols.numel() == 0 ? 0 : rows.num_ids,
                               WriteMatches{rows, counts(type), offsets(type), EdgeIdReader(input_.graphs[type]),
                                            out[type].cols.as<int64_t>(), out[type].edge_ids.as<int64_t>()});
    }
  }

 private:
  int64_t* counts(size_t edge_type) const { return memory_.result_at<int64_t>(layout_.edges[edge_type].counts); }
  int64_t* offsets(size_t edge_type) const { return memory_.scratch_at<int64_t>(layout_.edges[edge_type].offsets); }

  OrderedTable table_of(size_t node_type) const {
    const InducedLayout::Members& members = layout_.members[node_type];
    return {memory_.scratch_at<OrderedTable::Slot>(members.slots), members.num_slots - 1};
  }

  void enter_members(size_t node_type) {
    const OrderedTable table = table_of(node_type);
    executor_.fill(table.slots, 0xFF, layout_.members[node_type].num_slots * sizeof(OrderedTable::Slot));
    executor_.for_each(
        shape_.num_members[node_type],
        EnterMembers{table, IdReader(input_.members[node_type]), shape_.num_members[node_type],
                     shape_.num_nodes[node_type], memory_.result_at<uint64_t>(layout_.status) + node_type});
  }

  SearchedRows rows_of(size_t edge_type) const {
    const auto [seed_type, neighbor_type] = shape_.edge_types[edge_type];
    const Csr& csr = input_.graphs[edge_type];
    return {IdReader(input_.members[seed_type]),
            shape_.num_members[seed_type],
            RowOffsets(csr),
            csr.num_rows(),
            IdReader(csr.indices),
            table_of(neighbor_type)};
  }

  const InducedShape& shape_;
  const InducedLayout& layout_;
  const InducedInput& input_;
  BatchMemory memory_;
  Executor& executor_;
};

}  // namespace gld

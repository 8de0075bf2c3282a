// The hops of batches over partitions: each hop is split by owner, asked of those that hold other partitions, sampled
// here meanwhile as far as rows are here, and stitched in the order asked. Each batch is the one that the whole graph
// would give; those of one exchange share its queries. The rows of their nodes may follow in a last round.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/thread_pool.h"
#include "exchange/exchange.h"
#include "exchange/partitioned_graph.h"
#include "exchange/row_lookup.h"
#include "routing/split.h"
#include "sampling/batch_builder.h"

namespace gld::exchange {

class SampleExchange : public Exchange {
 public:
  struct Batch {
    std::shared_ptr<BatchBuilder> builder;  // has the batch's seeds, and is the exchange's until the end
    uint64_t epoch, index;
  };
  // `leaves_edges`: see BatchBuilder::finish(). `rows`: which rows of the batches' nodes are looked up, null for none;
  // its groups have node types.
  SampleExchange(std::shared_ptr<const PartitionedGraph> graph, std::vector<Batch> batches,
                 std::shared_ptr<ThreadPool> pool, bool leaves_edges, std::shared_ptr<const RowPlan> rows);

  // One query for each partition that owns some of the frontiers, whatever the number of edge types and batches.
  std::vector<Asked> next() override;
  void meanwhile() override;
  void take(size_t i, const rpc::IncomingValue& answer) override;
  void stitch() override;

  // When all is there: the batches, which are handed out once.
  std::vector<SampledSubgraph> take_batches() { return std::move(finished_); }
  // Their rows; null where none are looked up.
  const std::shared_ptr<RowLookup>& rows() const { return lookup_; }
  // When the last hop was over, in nanoseconds of the steady clock.
  int64_t sampled_at_ns() const { return sampled_at_ns_; }

 private:
  struct Frontier {  // of one node type, grouped by owner
    Split split;
    Tensor trees, times;  // grouped likewise; undefined where there are none
    const int64_t* bounds() const { return split.offsets.as<int64_t>(); }
    int64_t count(int partition) const { return bounds()[partition + 1] - bounds()[partition]; }
  };
  struct Hop {  // of one batch, along one edge type
    BatchBuilder* builder;
    int edge_type;
    std::shared_ptr<const Frontier> frontier;
    HopDraw draw;
    std::vector<NeighborPart> parts;  // by partition
  };
  struct Sent {
    int partition;
    std::vector<size_t> hops;  // what it was asked about, of hops_
  };
  void begin_hop();
  void begin_hop_of(const Batch& batch);
  void end_hop();
  // After the last hop; the queries for rows.
  std::vector<Asked> finish();

  const std::shared_ptr<const PartitionedGraph> graph_;
  const std::vector<Batch> batches_;
  const std::shared_ptr<ThreadPool> pool_;
  const bool leaves_edges_;
  const std::shared_ptr<const RowPlan> rows_;
  size_t hop_ = 0;  // the next
  std::vector<Hop> hops_;
  std::vector<Sent> sent_;
  bool is_sampled_ = false;
  int64_t sampled_at_ns_ = 0;
  std::vector<SampledSubgraph> finished_;
  std::shared_ptr<RowLookup> lookup_;
};

}  // namespace gld::exchange

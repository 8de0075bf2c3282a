// The hops of batches over partitions: each hop is split by owner, asked of those that hold other partitions, sampled
// here meanwhile as far as rows are here, and stitched in the order asked. Each batch is the one that the whole graph
// would give; those of one exchange share its queries.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "common/thread_pool.h"
#include "exchange/exchange.h"
#include "exchange/partitioned_graph.h"
#include "routing/split.h"
#include "sampling/batch_builder.h"

namespace gld::exchange {

class SampleExchange : public Exchange {
 public:
  struct Batch {
    std::shared_ptr<BatchBuilder> builder;  // has the batch's seeds, and is the exchange's until the end
    uint64_t epoch, index;
  };
  SampleExchange(std::shared_ptr<const PartitionedGraph> graph, std::vector<Batch> batches,
                 std::shared_ptr<ThreadPool> pool);

  // One query for each partition that owns some of the frontiers, whatever the number of edge types and batches.
  std::vector<Asked> next() override;
  void meanwhile() override;
  void take(size_t i, const rpc::IncomingValue& answer) override;
  void stitch() override { end_hop(); }

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

  const std::shared_ptr<const PartitionedGraph> graph_;
  const std::vector<Batch> batches_;
  const std::shared_ptr<ThreadPool> pool_;
  size_t hop_ = 0;  // the next
  std::vector<Hop> hops_;
  std::vector<Sent> sent_;
};

}  // namespace gld::exchange

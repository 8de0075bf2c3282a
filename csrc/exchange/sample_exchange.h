// The hops of one batch over partitions: each hop is split by owner, asked of those that hold other partitions, sampled
// here meanwhile as far as rows are here, and stitched in the order asked. The batch is the one that the whole graph
// would give.
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
  // `builder` has the batch's seeds, and is this exchange's until the end.
  SampleExchange(std::shared_ptr<const PartitionedGraph> graph, std::shared_ptr<BatchBuilder> builder, uint64_t epoch,
                 uint64_t batch, std::shared_ptr<ThreadPool> pool);

  // One query for each partition that owns some of the frontier, whatever the number of edge types.
  std::vector<Asked> next() override;
  void meanwhile() override;
  void take(size_t i, const rpc::IncomingValue& answer) override;

  BatchBuilder& builder() { return *builder_; }

 private:
  struct Frontier {  // of one node type, grouped by owner
    Split split;
    Tensor trees, times;  // grouped likewise; undefined where there are none
    const int64_t* bounds() const { return split.offsets.as<int64_t>(); }
    int64_t count(int partition) const { return bounds()[partition + 1] - bounds()[partition]; }
  };
  struct Hop {  // along one edge type
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
  void end_hop();

  const std::shared_ptr<const PartitionedGraph> graph_;
  const std::shared_ptr<BatchBuilder> builder_;
  const uint64_t epoch_, batch_;
  const std::shared_ptr<ThreadPool> pool_;
  size_t hop_ = 0;  // the next
  std::vector<Hop> hops_;
  std::vector<Sent> sent_;
};

}  // namespace gld::exchange

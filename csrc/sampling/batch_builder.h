// Grows one mini-batch hop by hop: sampled neighbors in, local ids and edges out.
//
// Node and edge types are small integers; a homogeneous graph has one of each. Per node type the builder keeps the
// batch's nodes in order of first appearance: the seeds as given (duplicates kept, each with edges of its own, the
// first one standing for the node afterwards; or collapsed where asked), then new nodes in the order of the edges that
// reached them. In a disjoint batch each seed grows a tree of its own: a node is new once per tree. A hop is
// either sampled here from a graph at hand (`sample_hop`: pick and relabel in one pass over blocks) or added from
// elsewhere (`add_hop`); both give the same batch. Within a hop the edge types are served in the order of the calls.
//
// Not thread-safe: one builder per batch in flight. Outputs are handed out in pooled memory, written once.
#pragma once
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "graph/csr.h"
#include "graph/csr_pieces.h"
#include "routing/split.h"
#include "sampling/cpu/pick_block.h"
#include "sampling/edge_runs.h"
#include "sampling/neighbor_sampler.h"
#include "sampling/relabel_table.h"

namespace gld {

// A growing int64 array in pooled memory. Contents survive growth; capacity is remembered from batch to batch.
class GrowingArray {
 public:
  void clear();  // starts anew; memory handed out before stays with its holder
  void reserve(int64_t capacity);
  int64_t* data() { return data_; }
  const int64_t* data() const { return data_; }
  int64_t size() const { return size_; }
  void set_size(int64_t size) { size_ = size; }
  Tensor view(int64_t begin, int64_t end) const;  // shares memory

 private:
  Tensor memory_;
  int64_t* data_ = nullptr;
  int64_t size_ = 0, capacity_ = 0, largest_ = 0;
};

struct EdgeTypeSpec {
  int seed_type;      // node type whose neighbors are sampled
  int neighbor_type;  // node type of those neighbors
};

struct SampledSubgraph {
  std::vector<Tensor> nodes;                            // per node type, int64, global ids
  std::vector<Tensor> trees;                            // per node type, int64; undefined unless disjoint
  std::vector<Tensor> edge_index;                       // per edge type, int64 [2, edges], local: neighbors, seeds
  std::vector<Tensor> rows, cols;                       // its two rows
  std::vector<EdgeRuns> unwritten;                      // per edge type, what edge_index still lacks; mostly none
  std::vector<Tensor> edge_ids;                         // per edge type, int64, global; undefined unless asked for
  std::vector<std::vector<int64_t>> num_sampled_nodes;  // [node type][hop], hop 0 are the seeds
  std::vector<std::vector<int64_t>> num_sampled_edges;  // [edge type][hop]
};

class BatchBuilder {
 public:
  // Types of up to `most_dense` nodes, at most kDenseRelabelLimit, have a table as large as that; others one of the
  // size of a batch. Batches are the same.
  BatchBuilder(std::vector<int64_t> num_nodes, std::vector<EdgeTypeSpec> edge_types,
               int64_t most_dense = kDenseRelabelLimit);

  // Starts a batch of at most `num_seeds` seeds. `max_new_nodes` bounds the nodes that hops may add (-1: no bound but
  // the graph): a hop that adds more throws InvalidArgument, and the batch is lost.
  void begin(int64_t num_seeds, int64_t max_new_nodes, bool with_edge_ids, bool disjoint);
  // Whether begin() will clear a table as large as the graph, which takes a while.
  bool begin_clears(int64_t num_seeds, int64_t max_new_nodes, bool disjoint) const;

  // Adds seeds of one node type, int32/int64 [n], before the first hop; gives their local ids, int64 [n]. `unique`
  // collapses those that were added before (not in a disjoint batch, where each seed starts a tree, numbered through
  // all calls). `times` int64 [n] or undefined: the time of each seed's tree, for all seeds or for none. Seeds outside
  // the graph throw UnknownId.
  Tensor add_seeds(int node_type, const Tensor& seeds, const Tensor& times, bool unique);

  // The nodes of a type whose neighbors the current hop samples. Views of the builder's memory; trees undefined unless
  // the batch is disjoint, times unless the seeds have them.
  HopNodes frontier(int node_type) const;
  int64_t frontier_size(int node_type) const;

  // Samples the frontier's neighbors along `edge_type` from `csr`, whose rows are global ids, or from a graph in
  // pieces. Offsets and neighbors are checked as they are read (graph/row_offsets.h): PartitionFormat, UnknownId.
  void sample_hop(int edge_type, const Csr& csr, const HopDraw& draw, ThreadPool& pool);
  void sample_hop(int edge_type, const CsrPieces& graph, const HopDraw& draw, ThreadPool& pool);

  // Adds neighbors sampled elsewhere: counts int64 [frontier], neighbors and edge_ids int32/int64 (the latter undefined
  // where not asked for) [sum of counts]. Wrong lengths throw InvalidArgument, unknown neighbors UnknownId.
  void add_hop(int edge_type, const Tensor& counts, const Tensor& neighbors, const Tensor& edge_ids);
  // The same of the answers of those who own the frontier, at most `max_count` neighbors of a node (-1: any number):
  // each is read once, and relabelled while it lies in the cache. Errors as of stitch_neighbors() (routing/split.h).
  void add_hop(int edge_type, const Split& frontier, const std::vector<NeighborPart>& parts, int64_t max_count);

  // Ends a hop: the nodes it added are the next frontier.
  void next_hop();

  // Hands out the batch. With `leaves_edges`, many edges of a type are left to EdgeRuns::write(): its `edge_index`,
  // `rows` and `cols` are undefined. Others are written by the pool's threads, if there is one.
  SampledSubgraph finish(bool leaves_edges = false, ThreadPool* pool = nullptr);
  // Whether finish() writes many edges, which takes a while.
  bool finish_writes(bool leaves_edges) const;

 private:
  using Table = std::variant<DenseRelabelTable, HashRelabelTable>;
  struct NodeState {
    int64_t num_nodes;
    Table table;
    HashRelabelTable tree_table;  // disjoint batches: (tree, node) as one number
    GrowingArray nodes, trees;
    int64_t max_local = 0;  // nodes that the table was begun for
    int64_t frontier_begin = 0, frontier_end = 0;
    std::vector<int64_t> per_hop;
  };
  struct EdgeState {
    EdgeTypeSpec spec;
    EdgeRuns runs;
    GrowingArray edge_ids;
    int64_t hop_edges = 0;
    std::vector<int64_t> per_hop;
  };

  // What bounds the nodes of a type in a batch.
  int64_t max_local(const NodeState& node, int64_t num_seeds, int64_t max_new_nodes, bool disjoint) const;
  int64_t add_seed(NodeState& node, int64_t id, bool unique);
  // Makes room for `count` more edges: for their ids, where wanted, and for as many neighbors.
  void reserve(EdgeState& edge, int64_t count);
  // Local ids of the neighbors of edges, by their global ids: new ones become nodes. In a disjoint batch, tree_of(e) is
  // the tree of edge e. Both may lie in the same place.
  template <typename Id, typename TreeOf>
  void relabel(EdgeState& edge, const Id* ids, int64_t count, uint32_t* locals, TreeOf tree_of);
  // Adds the edges of the frontier's nodes, `total` in all: read(from) puts what the next node has into it.
  template <typename Id, typename Read>
  void add_runs(EdgeState& edge, int64_t total, Read read);
  // Throws if a node type has more nodes than begin() was told. What was relabeled until then is of no use.
  void check_num_nodes(NodeState& node) const;
  void check_extents(const EdgeState& edge, int64_t num_rows, int64_t num_cols) const;
  // What sample_hop does with a hop graph (cpu/hop_graph.h) whose pickers serve the draw.
  template <typename Graph>
  void sample_frontier(EdgeState& edge, const Graph& graph, uint64_t key, ThreadPool& pool);
  EdgeState& edge_state(int edge_type);
  const NodeState& node_state(int node_type) const;
  // Times of the frontier's nodes; undefined where seeds have none.
  Tensor frontier_times(const NodeState& node) const;

  std::vector<NodeState> nodes_;
  std::vector<EdgeState> edges_;
  bool with_edge_ids_ = false, disjoint_ = false;
  int64_t num_seeds_ = 0, num_announced_ = 0;
  std::vector<int64_t> tree_times_;     // per tree (seed); empty where seeds have no times
  std::vector<Candidates> candidates_;  // per node of the frontier; never shrinks
  std::vector<int32_t> owners_;         // likewise, of graphs in pieces
  std::vector<int64_t> block_offsets_;  // per block of the frontier, its first edge in the hop
  std::vector<int64_t> wide_ids_;       // per edge of a hop, its neighbor, where ids have 8 bytes; never shrinks
  std::vector<uint32_t> edge_nodes_;    // likewise, the node of the frontier that it is of, where that is asked for
};

}  // namespace gld

// One hop: the sampled neighbors of a list of nodes.
#pragma once
#include <cstdint>
#include <limits>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "graph/csr.h"

namespace gld {

// A number in the list of methods (sampling/methods.h).
enum class Method : uint8_t { kUniform = 0 };

// What times mean, for nodes that have one. The graph has times unless they are ignored.
enum class TimeRule : uint8_t {
  kIgnore,
  kBefore,  // edges later than the node's time are not there
  kLatest,  // the same, and the latest edges are taken instead of random ones, in ascending order of time
};

// How neighbors along one edge type are drawn, in all hops of a loader.
struct DrawMethod {
  Method method = Method::kUniform;
  bool replace = false;
  TimeRule times = TimeRule::kIgnore;
};

constexpr int64_t kMaxFanout = (int64_t{1} << 31) - 1;

// One hop along one edge type.
struct HopDraw {
  int64_t fanout = 0;  // -1: all; 0: none
  DrawMethod how;
  uint64_t key = 0;  // draw_key(seed, epoch, batch, hop, edge type)
  bool with_edge_ids = false;
};

// Whose neighbors are drawn. `trees` (disjoint batches) gives the tree each node stands in: the same node in two trees
// has draws of its own in each.
struct HopNodes {
  Tensor ids;           // global, int32 or int64 [n]
  Tensor rows;          // int64 [n], their rows in the graph; undefined where a row is the id
  Tensor trees, times;  // int64 [n] or undefined; times are read by a TimeRule alone
};

struct OneHop {
  Tensor counts;     // int64 [n], neighbors of each node asked for
  Tensor neighbors;  // the graph's index dtype [sum of counts], grouped by node in the order asked
  Tensor edge_ids;   // int64 [sum of counts], global; undefined unless asked for
};

// Throws InvalidArgument unless fanout is -1 or within [0, kMaxFanout], the graph and the nodes have what the draw
// needs, and the method makes sense: some draw without replacement only, and the latest edges are drawn by no method
// and not replaced.
void check_draw(const Csr& csr, const HopDraw& draw, bool nodes_have_times);

// Draws depend on global ids (and trees and times) alone, so the result does not depend on how the graph is
// partitioned. Throws InvalidArgument where `csr` lacks the weights or times that are asked for or there are more than
// `max_neighbors` in all, and PartitionFormat or UnknownId where what is read of it is damaged (graph/row_offsets.h).
OneHop sample_neighbors(const Csr& csr, const HopNodes& nodes, const HopDraw& draw, ThreadPool& pool,
                        int64_t max_neighbors = std::numeric_limits<int64_t>::max());

}  // namespace gld

// Blocks of near nodes from a graph that is streamed: linear deterministic greedy, re-streamed.
//
// I. Stanton and G. Kliot, Streaming graph partitioning for large distributed graphs, KDD 2012; J. Nishimura and
// J. Ugander, Restreaming graph partitioning, KDD 2013. A node goes where most of its neighbors are, times what is left
// of that block's capacity; from the second pass on all neighbors have a block.
#pragma once
#include "common/tensor.h"

namespace gld {

struct StreamedGraph {
  Tensor offsets;    // int64 [num_nodes + 1]
  Tensor neighbors;  // int32 or int64 [num_edges]; read in order, once a pass: a mapped file will do
  Tensor weights;    // int64 [num_nodes], at least 0
};

// Divides each group of nodes into `num_blocks` blocks of near-equal weight: int32 [num_nodes], block b of group g is
// g * num_blocks + b. `groups` int32 [num_nodes], in [0, num_groups); only neighbors in a node's own group count. No
// block has more than (1 + slack) times its share unless one node alone does. Memory: a few bytes a node.
// Deterministic.
Tensor stream_blocks(const StreamedGraph& graph, const Tensor& groups, int num_groups, int num_blocks, int num_passes,
                     double slack);

}  // namespace gld

// The edges among a set of nodes.
#pragma once
#include <cstdint>
#include <limits>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "graph/csr.h"

namespace gld {

struct InducedEdges {
  Tensor counts;    // int64 [n], edges of each node asked for
  Tensor cols;      // int64 [sum of counts], positions in `members`, grouped by node in the order asked
  Tensor edge_ids;  // int64 [sum of counts], global; undefined unless asked for
};

// All edges from node `ids[i]` (global, int32 or int64 [n]), whose row in `csr` is `rows[i]` (int64; ids[i] where
// undefined), to nodes of `members` (global, int32 or int64 [m]). Edges of a node come in the order of its row, several
// between the same two nodes all of them. Of members that repeat, the first stands for all. Keeps no state and needs
// only the rows asked for, so the owner of a part of the graph can answer for its part. Ids outside the graph throw
// UnknownId, offsets of a row that are not in order within the edges PartitionFormat, more than `max_edges` in all
// InvalidArgument. A neighbor that is no node is no member.
InducedEdges induced_edges(const Csr& csr, const Tensor& ids, const Tensor& rows, const Tensor& members,
                           bool with_edge_ids, ThreadPool& pool,
                           int64_t max_edges = std::numeric_limits<int64_t>::max());

// int64 [2, sum of counts]: `neighbors` (int64 [sum of counts]), and behind them for each the position of the node that
// it is grouped by, of which node i has counts[i] (int64 [n]). Throws InvalidArgument unless there are so many.
Tensor pair_with_nodes(const Tensor& counts, const Tensor& neighbors);

}  // namespace gld

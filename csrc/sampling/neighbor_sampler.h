// One hop: the sampled neighbors of a list of nodes.
#pragma once
#include <cstdint>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "graph/csr.h"

namespace gld {

// How the neighbors of one hop along one edge type are drawn.
struct HopDraw {
  int64_t fanout = 0;  // -1: all; else >= 1
  bool replace = false;
  uint64_t key = 0;  // draw_key(seed, epoch, batch, hop, edge type)
  bool with_edge_ids = false;
};

struct OneHop {
  Tensor counts;     // int64 [n], neighbors of each node asked for
  Tensor neighbors;  // the graph's index dtype [sum of counts], grouped by node in the order asked
  Tensor edge_ids;   // int64 [sum of counts], global; undefined unless asked for
};

// Throws InvalidArgument unless fanout is -1 or at least 1.
void check_fanout(int64_t fanout);

// Samples for node `ids[i]` (global, int32 or int64 [n]), whose row in `csr` is `rows[i]` (or ids[i] where `rows` is
// undefined). Draws depend on the global id alone, so the result does not depend on how the graph is partitioned.
OneHop sample_neighbors(const Csr& csr, const Tensor& ids, const Tensor& rows, const HopDraw& draw, ThreadPool& pool);

}  // namespace gld

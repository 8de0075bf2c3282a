// A batch's edges by the node that they were sampled for: its adjacency, compressed by targets.
#pragma once
#include "common/tensor.h"

namespace gld {

struct CompressedEdges {
  Tensor offsets;   // int32 [num_cols + 1]: those of a target are entries [offsets[i], offsets[i + 1])
  Tensor rows;      // int32 [edges], their sources, ascending
  Tensor edge_ids;  // int64 [edges], in the same order; undefined where none were given
};

// `edge_index` int64 [2, edges] of local ids: sources, and targets in ascending order and below `num_cols`, as a batch
// has them. `edge_ids` int64 [edges] or undefined; those of equal edges keep their order. Other dtypes, shapes or
// orders throw InvalidArgument, and so do more entries than 32 bits count.
CompressedEdges compress_edges(const Tensor& edge_index, const Tensor& edge_ids, int64_t num_cols);

}  // namespace gld

// A batch's edges without some of them, which are told by their ids.
#pragma once
#include "common/tensor.h"

namespace gld {

struct KeptEdges {
  Tensor edge_index;  // int64 [2, kept]
  Tensor edge_ids;    // int64 [kept]
  Tensor dropped;     // int64 [edges - kept], positions among all edges, ascending
};

// `edge_index` int64 [2, edges], `edge_ids` int64 [edges], `excluded` int64 [m], any order, duplicates and ids of no
// edge allowed. The kept edges are in the order they had. Where none is dropped the given arrays are given back. Other
// dtypes or shapes throw InvalidArgument. Takes one pass over the edges, however many are excluded.
KeptEdges drop_edges(const Tensor& edge_index, const Tensor& edge_ids, const Tensor& excluded);

}  // namespace gld

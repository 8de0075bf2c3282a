// Negatives drawn by a GPU: the draws of random_ids() and the answers of has_edges(), bit by bit.
#pragma once
#include <cstdint>

#include "common/cuda_stream.h"
#include "common/tensor.h"
#include "graph/csr.h"

namespace gld {

// Sources or targets that are drawn. All tensors lie in memory that the GPU reads.
struct DrawnEnd {
  int64_t num_nodes = 0;  // drawn are ids below it, of which there is one at least
  Tensor weights, sums;   // [num_nodes], as those of random_ids(); or both undefined
  Tensor times, limits;   // int64 [num_nodes] and [slots]: nodes not later than a slot's limit; or both undefined
  int64_t earliest = -1;  // with times: the node that came first
  int64_t stride = 1, first = 0;  // draw d of the slots is at position stride * d + first of the key's
  Tensor nodes;                   // int64 [slots], out
};

struct NegativeRequest {
  const Csr* edges = nullptr;  // no pair is one of these; null: any pair may be
  bool rows_are_sources = true;
  const DrawnEnd* sources = nullptr;  // null: those given
  Tensor given_sources;               // int32 or int64 [slots]
  DrawnEnd targets;
  uint64_t key = 0;
  int64_t num_trials = 1;
  Tensor is_open;  // uint8 [slots], out: 1 where no pair was found that is not an edge (nor too late)
};

// Fills the slots in up to num_trials rounds; draw d of slot i in round r is r * slots + i. In a round each end that is
// open is drawn, and stays open where its node is too late; pairs of which neither is are asked for among the edges,
// and what is an edge is open again. An end that is open in the end gets the earliest node where pairs may be edges.
// One launch on the stream, not waited for. Throws InvalidArgument where shapes or dtypes do not fit together,
// CudaError where the launch fails.
void draw_negatives_on_device(const NegativeRequest& request, CudaStream stream);

// found[i] (uint8 [n]): whether row rows[i] holds the neighbor cols[i]; see has_edges(). `status` int64 [1], -1
// beforehand, is lowered, as an unsigned number, to the first i of a pair that is outside the graph. Otherwise as
// above.
void has_edges_on_device(const Csr& csr, const Tensor& rows, const Tensor& cols, const Tensor& found,
                         const Tensor& status, CudaStream stream);

}  // namespace gld

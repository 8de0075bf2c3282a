// How sampled batches reach Python.
#pragma once
#include <pybind11/pybind11.h>

#include "sampling/batch_builder.h"

namespace gld {

// (nodes, edge_index, edge_ids, num_sampled_nodes, num_sampled_edges, trees), each a list by type; EdgeRuns in the
// place of edges that are unwritten.
pybind11::tuple to_tuple(SampledSubgraph batch);

}  // namespace gld

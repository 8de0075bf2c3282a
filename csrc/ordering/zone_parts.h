// Which partition gets which zone: a partition of the zones' small graph.
#pragma once
#include <cstdint>

#include "common/tensor.h"

namespace gld {

// Partitions at most a few thousand zones so that few edges are cut: int64 [num_zones].
//
// `edges` int64 [num_zones, num_zones], symmetric: how many edges join two zones (the diagonal does not matter).
// `weights` int64 [num_zones, num_constraints]: of each constraint, no partition should have more than 1 + slack times
// its share; a constraint that is zero everywhere is none. Where that cannot be had, the least excess goes before the
// cut. Recursive bisection, multilevel by heavy edges (G. Karypis and V. Kumar, A fast and high quality multilevel
// scheme for partitioning irregular graphs, SIAM J. Sci. Comput. 1998), and Fiduccia and Mattheyses' refinement (A
// linear-time heuristic for improving network partitions, DAC 1982) with two and with all parts; the best of
// `num_tries`, which is then disturbed and refined again, some times a try (iterated local search: H. Lourenço, O.
// Martin and T. Stützle, Handbook of Metaheuristics 2003). A function of its arguments.
Tensor zone_parts(const Tensor& edges, const Tensor& weights, int num_parts, double slack, int num_tries,
                  uint64_t seed);

}  // namespace gld

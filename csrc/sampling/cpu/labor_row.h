// LABOR picks of one node, many neighbors at a time: numbers are made in the lanes of a vector, and a threshold leaves
// few of them to choose from. The picks are those of pick_labor() in pickers.h.
#pragma once
#include <cstdint>

#include "common/rng.h"

namespace gld {

// positions [fanout]: of the `fanout` < `count` neighbors of smallest number among ids [count], ascending. `stream` is
// the node's. Fan-outs from 1.
void pick_labor_row(uint64_t key, NodeStream stream, const int32_t* ids, int64_t count, int64_t fanout,
                    int64_t* positions);
void pick_labor_row(uint64_t key, NodeStream stream, const int64_t* ids, int64_t count, int64_t fanout,
                    int64_t* positions);

}  // namespace gld

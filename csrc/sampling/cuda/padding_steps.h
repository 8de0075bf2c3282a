// The kernels of batches of fixed shapes, beside those of batch_steps.h: seeds are read from the schedule by the
// batch's index, and what is left of the arrays is filled. Nobody reads a number on the host, so that a captured batch
// can be replayed as another.
#pragma once
#include <cstdint>

#include "common/atomics.h"
#include "common/host_device.h"
#include "common/rng.h"
#include "common/shuffle.h"
#include "sampling/candidates.h"
#include "sampling/cuda/ordered_table.h"

namespace gld {

// The seeds of one batch: those that SeedSchedule (sampler/epochs/schedule.py) has at its index.
struct TakeSeeds {
  IdReader nodes;
  const int64_t* node_times;  // null where they have none
  int64_t num_inputs;
  bool shuffle;
  const int64_t* batch;              // [3]: seed, epoch, index
  int64_t *positions, *ids, *times;  // [size]
  int64_t* num_seeds;                // counter
  int64_t size;

  GLD_HOST_DEVICE int64_t count() const { return size; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t left = num_inputs - batch[2] * size;
    if (i == 0) *num_seeds = left < 0 ? 0 : left < size ? left : size;
    if (i >= left) return;
    const int64_t place = batch[2] * size + i;
    const int64_t position = shuffle ? Shuffle(num_inputs, shuffle_key(batch[0], batch[1])).at(place) : place;
    positions[i] = position;
    ids[i] = nodes(position);
    if (node_times != nullptr) times[i] = node_times[position];
  }
};

// A batch in which something went wrong becomes an empty one: all counters 0. The first such is kept, for the host.
struct SettleBatch {
  const uint64_t* status;
  const int64_t* batch;
  int64_t* failure;  // [3]: its status, epoch and index; the first -1 where there was none
  int64_t* counters;
  int64_t num_counters;

  GLD_HOST_DEVICE int64_t count() const { return num_counters; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    const uint64_t found = *status;
    if (found == OrderedTable::kEmpty) return;
    counters[i] = 0;
    if (i > 0 || failure[0] >= 0) return;
    failure[0] = static_cast<int64_t>(found);
    failure[1] = batch[1];
    failure[2] = batch[2];
  }
};

struct PadSeeds {
  int64_t *positions, *times;
  bool* mask;
  const int64_t* num_seeds;  // counter
  int64_t size;

  GLD_HOST_DEVICE int64_t count() const { return size; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    mask[i] = i < *num_seeds;
    if (mask[i]) return;
    positions[i] = -1;
    times[i] = 0;
  }
};

struct PadNodes {
  int64_t *ids, *trees;  // trees null unless disjoint
  bool* mask;
  const int64_t* num_nodes;  // counter
  int64_t size, num_trees;

  GLD_HOST_DEVICE int64_t count() const { return size; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    mask[i] = i < *num_nodes;
    if (mask[i]) return;
    ids[i] = -1;
    if (trees != nullptr) trees[i] = num_trees;
  }
};

// The padding nodes of a type: those behind the real ones.
struct PaddingNodes {
  const int64_t* num_nodes;  // counter
  int64_t size;

  // Of the i-th edge of padding. In turn, so that sums over edges do not all meet at one node.
  GLD_HOST_DEVICE int64_t in_turn(int64_t i) const { return *num_nodes + i % (size - *num_nodes); }
};

struct PadEdges {
  int64_t *rows, *cols, *edge_ids;  // edge_ids may be null
  bool* mask;
  const int64_t* num_edges;  // counter
  PaddingNodes neighbors, seeds;
  int64_t size;

  GLD_HOST_DEVICE int64_t count() const { return size; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t padding = i - *num_edges;
    mask[i] = padding < 0;
    if (mask[i]) return;
    rows[i] = neighbors.in_turn(padding);
    cols[i] = seeds.in_turn(padding);
    if (edge_ids != nullptr) edge_ids[i] = -1;
  }
};

}  // namespace gld

// The kernels that put the answers of owners into the order of the ids that were asked for, as functors for host and
// device (see sampling/cuda/batch_steps.h).
#pragma once
#include <cstdint>

#include "common/atomics.h"
#include "common/cuda/group_scan.h"
#include "common/host_device.h"
#include "common/tensor.h"
#include "sampling/candidates.h"
#include "sampling/pickers.h"

namespace gld {

// What is wrong with answers, lowered to the first of each; all bits set: nothing.
struct StitchStatus {
  uint64_t count;     // place, in the order of the buckets, of a count that is negative or above its part's neighbors
  uint64_t position;  // place of a position that is outside [0, n), or stands there twice
  uint64_t part;      // part whose counts do not add up to its neighbors

  GLD_HOST_DEVICE bool is_good() const { return (count & position & part) == ~uint64_t{0}; }
};

// The counts of one part, to the order of the buckets and to that of the ids.
struct CollectCounts {
  IdReader part_counts;
  int64_t first, bucket_size, num_neighbors, num_ids;
  const int64_t* positions;    // [num_ids]
  int64_t *bucketed, *counts;  // [num_ids]; counts are -1 beforehand
  StitchStatus* status;

  GLD_HOST_DEVICE int64_t count() const { return bucket_size; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t place = first + i, where = positions[place], count = part_counts(i);
    // Each is bounded by itself, too: a sum that wraps around may be right by chance.
    const bool is_possible = count >= 0 && count <= num_neighbors;
    bucketed[place] = is_possible ? count : 0;
    if (!is_possible) atomic_lower(&status->count, static_cast<uint64_t>(place));
    if (where < 0 || where >= num_ids)
      atomic_lower(&status->position, static_cast<uint64_t>(place));
    else if (atomic_claim(reinterpret_cast<uint64_t*>(counts + where), ~uint64_t{0},
                          static_cast<uint64_t>(bucketed[place])) != ~uint64_t{0})
      atomic_lower(&status->position, static_cast<uint64_t>(place));
  }
};

// Whether the counts of one part add up to its neighbors.
struct CheckPart {
  int64_t part, first, end, num_neighbors;
  const int64_t* starts;  // in the order of the buckets
  StitchStatus* status;

  GLD_HOST_DEVICE int64_t count() const { return 1; }
  GLD_HOST_DEVICE void operator()(int64_t) const {
    if (starts[end] - starts[first] != num_neighbors) atomic_lower(&status->part, static_cast<uint64_t>(part));
  }
};

// Writes ids of either dtype.
struct IdWriter {
  void* ids;  // null: there are none
  bool is_narrow;

  explicit IdWriter(const Tensor& tensor) : ids(tensor.data), is_narrow(tensor.dtype == kInt32) {}

  GLD_HOST_DEVICE void write(int64_t at, int64_t id) const {
    if (is_narrow)
      static_cast<int32_t*>(ids)[at] = static_cast<int32_t>(id);
    else
      static_cast<int64_t*>(ids)[at] = id;
  }
};

// A thread per neighbor of one part: to its place in the order of the ids. Nothing where answers are wrong.
struct MoveNeighbors {
  int64_t first, bucket_size, num_neighbors;
  const int64_t* positions;
  const int64_t *sources, *targets;  // starts in the order of the buckets, and of the ids
  IdReader neighbors, edge_ids;
  IdWriter out_neighbors, out_edge_ids;
  const StitchStatus* status;

  GLD_HOST_DEVICE int64_t count() const { return status->is_good() ? num_neighbors : 0; }
  GLD_HOST_DEVICE void operator()(int64_t j) const {
    // The last node of the bucket whose neighbors begin no later: nodes without neighbors share a start with the next.
    const int64_t from = sources[first] + j;
    const int64_t place = first + count_up_to(sources + first, bucket_size, from) - 1;
    const int64_t to = targets[positions[place]] + from - sources[place];
    out_neighbors.write(to, neighbors(j));
    if (out_edge_ids.ids != nullptr) out_edge_ids.write(to, edge_ids(j));
  }
};

}  // namespace gld

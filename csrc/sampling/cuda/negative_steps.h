// The kernels of negative sampling, as functors for host and device (see batch_steps.h). Every slot for a negative is
// filled by a thread of its own (by a group, where rows must be read to find an edge), in all its trials: what it draws
// depends on no other slot.
#pragma once
#include <cstdint>

#include "common/atomics.h"
#include "common/cuda/group_scan.h"
#include "common/host_device.h"
#include "graph/csr.h"
#include "sampling/candidates.h"
#include "sampling/negative.h"

namespace gld {

// The edges of one type, asked whether a pair is among them.
struct EdgeSet {
  RowOffsets row_at{nullptr, 0};
  int64_t num_rows = 0, num_cols = 0;
  IdReader neighbor_at{Tensor{}};
  bool is_ascending = true;  // each row by neighbor

  EdgeSet() = default;  // none
  explicit EdgeSet(const Csr& csr)
      : row_at(csr),
        num_rows(csr.num_rows()),
        num_cols(csr.num_cols),
        neighbor_at(csr.indices),
        is_ascending(csr.sorted_by_neighbor()) {}

  GLD_HOST_DEVICE bool holds_ids(int64_t row, int64_t col) const {
    return row >= 0 && row < num_rows && col >= 0 && col < num_cols;
  }

  // By a thread, in rows that are ascending. False where one of them is outside the graph.
  GLD_HOST_DEVICE bool has_edge(int64_t row, int64_t col) const {
    Candidates in = candidates(row, col);
    while (in.count > 0) {
      const int64_t half = in.count / 2, found = neighbor_at(in.start + half);
      if (found == col) return true;
      in = found < col ? Candidates{in.start + half + 1, in.count - half - 1} : Candidates{in.start, half};
    }
    return false;
  }

  // The same by a group of threads, which reads the row: rows in the order of times are not ascending.
  template <typename Group>
  GLD_HOST_DEVICE bool has_edge(Group& group, int64_t row, int64_t col) const {
    const Candidates in = candidates(row, col);
    uint64_t* found = reinterpret_cast<uint64_t*>(group.memory);
    group.each([&](int thread) {
      if (thread == 0) *found = 0;
    });
    group.each([&](int thread) {
      for (int64_t i = thread; i < in.count && atomic_read(found) == 0; i += kGroupThreads)
        if (neighbor_at(in.start + i) == col) atomic_write(found, 1);
    });
    const bool has_edge = *found != 0;
    group.each([](int) {});  // all have read it
    return has_edge;
  }

 private:
  // A row whose offsets are damaged has no edges: DeviceTopology, which reads them all, has refused such.
  GLD_HOST_DEVICE Candidates candidates(int64_t row, int64_t col) const {
    RowSpan span;
    if (!holds_ids(row, col) || !row_at.find(row, &span)) return {0, 0};
    return whole_row(span);
  }
};

// Runs a body with a thread for each of its slots or pairs, or a group where rows must be read.
template <typename Executor, typename Body>
void run_asking(Executor& executor, const Body& body) {
  if (body.edges.is_ascending)
    executor.for_each(body.count(), body);
  else
    executor.for_each_group(body.count(), body);
}

struct HasEdges {
  EdgeSet edges;
  IdReader rows, cols;
  int64_t num_pairs;
  uint8_t* found;    // [num_pairs]
  uint64_t* status;  // lowered to the position of a pair that is outside the graph

  GLD_HOST_DEVICE int64_t count() const { return num_pairs; }
  GLD_HOST_DEVICE void operator()(int64_t i) const { tell(i, edges.has_edge(rows(i), cols(i))); }

  GLD_HOST_DEVICE int64_t num_groups() const { return num_pairs; }
  template <typename Group>
  GLD_HOST_DEVICE void operator()(Group& group, int64_t i) const {
    const bool is_edge = edges.has_edge(group, rows(i), cols(i));
    group.each([&](int thread) {
      if (thread == 0) tell(i, is_edge);
    });
  }

 private:
  GLD_HOST_DEVICE void tell(int64_t i, bool is_edge) const {
    if (!edges.holds_ids(rows(i), cols(i))) atomic_lower(status, static_cast<uint64_t>(i));
    found[i] = is_edge ? 1 : 0;
  }
};

// Sources or targets that are drawn: the nodes of one type.
struct NegativeEnd {
  int64_t num_nodes;
  IdWeights weights;              // [num_nodes]
  const int64_t *times, *limits;  // [num_nodes], [slots]: no node may be later than its slot allows; null: any may
  int64_t earliest;               // node that stands in for those that are; -1 without times
  int64_t stride, first;          // draw number d is at position stride * d + first of the key's
  int64_t* nodes;                 // [slots], out

  GLD_HOST_DEVICE int64_t draw(uint64_t key, int64_t number) const {
    return random_id(key, stride * number + first, num_nodes, weights);
  }
  GLD_HOST_DEVICE bool is_late(int64_t node, int64_t slot) const {
    return times != nullptr && times[node] > limits[slot];
  }
};

struct DrawNegatives {
  NegativeEnd sources, targets;
  bool draws_sources;  // else the sources are those given, one a slot
  IdReader given_sources;
  EdgeSet edges;
  bool is_strict, rows_are_sources;
  uint64_t key;
  int64_t num_slots, num_trials;
  uint8_t* is_open;  // [slots], out: whether the slot of a strict negative found none

  GLD_HOST_DEVICE int64_t count() const { return num_slots; }
  GLD_HOST_DEVICE void operator()(int64_t slot) const {
    fill(slot, draw(slot, [this](int64_t row, int64_t col) { return edges.has_edge(row, col); }));
  }

  GLD_HOST_DEVICE int64_t num_groups() const { return num_slots; }
  template <typename Group>
  GLD_HOST_DEVICE void operator()(Group& group, int64_t slot) const {
    const Slot drawn = draw(slot, [&](int64_t row, int64_t col) { return edges.has_edge(group, row, col); });
    group.each([&](int thread) {
      if (thread == 0) fill(slot, drawn);
    });
  }

 private:
  struct Slot {
    int64_t source, target;
    bool source_is_open, target_is_open;
  };

  // has_edge(row, col) asks the edges.
  template <typename HasEdge>
  GLD_HOST_DEVICE Slot draw(int64_t slot, const HasEdge& has_edge) const {
    int64_t source = draws_sources ? 0 : given_sources(slot), target = 0;
    bool source_is_open = draws_sources, target_is_open = true;
    // An end that is too late is drawn again alone, of a pair that is an edge each end is.
    for (int64_t trial = 0; trial < num_trials && (source_is_open || target_is_open); ++trial) {
      const int64_t number = trial * num_slots + slot;
      if (source_is_open) source_is_open = sources.is_late(source = sources.draw(key, number), slot);
      if (target_is_open) target_is_open = targets.is_late(target = targets.draw(key, number), slot);
      if (is_strict && !source_is_open && !target_is_open &&
          (rows_are_sources ? has_edge(source, target) : has_edge(target, source))) {
        source_is_open = draws_sources;
        target_is_open = true;
      }
    }
    return {source, target, source_is_open, target_is_open};
  }

  GLD_HOST_DEVICE void fill(int64_t slot, Slot drawn) const {
    const bool source_is_open = drawn.source_is_open, target_is_open = drawn.target_is_open;
    if (draws_sources) sources.nodes[slot] = source_is_open && !is_strict ? sources.earliest : drawn.source;
    targets.nodes[slot] = target_is_open && !is_strict ? targets.earliest : drawn.target;
    is_open[slot] = is_strict && (source_is_open || target_is_open) ? 1 : 0;
  }
};

}  // namespace gld

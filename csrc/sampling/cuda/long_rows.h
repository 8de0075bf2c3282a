// Picks without replacement from long rows, which a method reads whole: by a group of threads
// (common/cuda/group_scan.h) that reads a row in strides. The picks are those of the methods (sampling/methods.h), bit
// by bit: what a method picks are the edges of smallest key, and the order of keys and ties is total, so that who reads
// which edge does not matter.
//
// A method that reads rows specializes LongRow: begin(), for one thread, which makes the picks that need not read the
// row and says whether that was all; and finish(), for the group, which makes the others.
#pragma once
#include <cstdint>

#include "common/cuda/group_select.h"
#include "common/host_device.h"
#include "sampling/methods.h"

namespace gld {

// Rows longer than kLongest of a method are the work of a group: below, it takes longer to begin than a thread to read
// them. That was measured for LABOR and for top-k (docs/gpu.md).
constexpr int64_t kLeastLongRow = kGroupThreads, kLongRow = 4 * kGroupThreads;

// Of a method that reads no row, or whose threads read rows of any length.
template <typename Method>
struct LongRow {
  static constexpr bool kIsShared = false;
};

// What methods have in common that pick the edges of smallest key_of(i), in row order.
struct PickSmallest {
  static constexpr bool kIsShared = true;

  template <typename Scratch>
  GLD_HOST_DEVICE static bool begin(const EdgeColumns&, const PickStream&, Candidates, int64_t, int64_t*, Scratch*) {
    return false;
  }

  template <typename Group, typename KeyOf, typename Tie, typename Scratch>
  GLD_HOST_DEVICE static void pick(Group& group, Candidates from, int64_t fanout, int64_t* positions, Scratch* keys,
                                   const KeyOf& key_of, const Tie& tie) {
    take_smallest(
        group, from.count, fanout,
        [&](int64_t i, uint64_t* key) {
          *key = key_of(i);
          return true;
        },
        tie, [&](int64_t slot, int64_t i, uint64_t) { positions[slot] = i; });
    group.each([&](int thread) {
      if (thread == 0) sort_positions(positions, fanout, keys);
    });
  }
};

template <>
struct LongRow<methods::Labor> : PickSmallest {
  static constexpr int64_t kLongest = kLeastLongRow;

  template <typename Group>
  GLD_HOST_DEVICE static void finish(Group& group, const EdgeColumns& edges, const PickStream& stream, Candidates from,
                                     int64_t fanout, int64_t* positions, uint64_t* keys) {
    const auto number = [&](int64_t i) { return labor_number(stream.tree_key, edges.neighbor_at(from.start + i)); };
    pick(group, from, fanout, positions, keys, number, InStreamOrder{stream});
  }
};

template <>
struct LongRow<methods::TopK> : PickSmallest {
  static constexpr int64_t kLongest = kLongRow;

  template <typename Group>
  GLD_HOST_DEVICE static void finish(Group& group, const EdgeColumns& edges, const PickStream&, Candidates from,
                                     int64_t fanout, int64_t* positions, double* keys) {
    const auto lightness = [&](int64_t i) { return order_of(-edges.weight_at(from.start + i)); };
    pick(group, from, fanout, positions, keys, lightness, InRowOrder{});
  }
};

// Attempts find their edges by bisection; what they leave over is a race of all edges, in which the group takes part.
template <>
struct LongRow<methods::Weighted> {
  static constexpr bool kIsShared = true;
  static constexpr int64_t kLongest = kLongRow;

  GLD_HOST_DEVICE static bool begin(const EdgeColumns& edges, const PickStream& stream, Candidates from, int64_t fanout,
                                    int64_t* positions, uint64_t* clocks) {
    const int64_t found = attempt_distinct(stream, methods::Weighted::row(edges, from), fanout, positions,
                                           ScanOfPicks<int64_t>{positions}, RecordNothing{});
    clocks[0] = static_cast<uint64_t>(found);
    return found == fanout;
  }

  template <typename Group>
  GLD_HOST_DEVICE static void finish(Group& group, const EdgeColumns& edges, const PickStream& stream, Candidates from,
                                     int64_t fanout, int64_t* positions, uint64_t* clocks) {
    const WeightedRow row = methods::Weighted::row(edges, from);
    const int64_t found = static_cast<int64_t>(clocks[0]), num_winners = fanout - found;
    const uint64_t key = race_key(stream, fanout);
    const ScanOfPicks<int64_t> is_picked{positions};
    take_smallest(
        group, from.count, num_winners,
        [&](int64_t i, uint64_t* clock) { return !is_picked(found, i) && find_clock(key, row, i, clock); },
        InRowOrder{},
        [&](int64_t slot, int64_t i, uint64_t clock) {
          positions[found + slot] = i;
          clocks[slot] = clock;
        });
    group.each([&](int thread) {
      if (thread == 0) sort_by_key(clocks, positions + found, num_winners);
    });
  }
};

// The rows of one step that a group is to finish: places in its frontier, in any order.
struct LongRows {
  uint64_t* num_more;  // how many there are, less 1: all bits set beforehand. Null: no row of the graph is long
  int64_t* places;

  GLD_HOST_DEVICE bool is_kept() const { return num_more != nullptr; }
  GLD_HOST_DEVICE int64_t count() const { return static_cast<int64_t>(*num_more + 1); }
  GLD_HOST_DEVICE void add(int64_t place) const { places[atomic_add(num_more, 1) + 1] = place; }
};

}  // namespace gld

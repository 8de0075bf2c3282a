// Which of a node's neighbors are picked: positions within its row, as a pure function of the node's stream.
//
// One picker per method, for host and device. `fanout` -1 takes all. Positions come in the order of the draws unless a
// picker says otherwise. Memory is the caller's. Floating point is confined to operations that every IEEE machine
// rounds alike and no compiler can contract into others: sums are formed once when a graph is built, and pickers
// compare, multiply and divide.
// Pickers by weight are in weighted_picks.h.
#pragma once
#include <cstdint>
#include <cstring>

#include "common/host_device.h"
#include "common/rng.h"

namespace gld {

constexpr int64_t kTakeAll = -1;

GLD_HOST_DEVICE inline int64_t pick_count(int64_t degree, int64_t fanout, bool replace) {
  if (fanout == kTakeAll) return degree;
  if (replace) return degree > 0 ? fanout : 0;
  return degree < fanout ? degree : fanout;
}

template <typename Position>
GLD_HOST_DEVICE inline void pick_all(int64_t degree, Position* positions) {
  for (int64_t i = 0; i < degree; ++i) positions[i] = static_cast<Position>(i);
}

// --- uniform ---------------------------------------------------------------------------------------------------------

template <typename Position>
GLD_HOST_DEVICE inline void pick_with_replacement(NodeStream stream, int64_t degree, int64_t fanout,
                                                  Position* positions) {
  for (int64_t i = 0; i < fanout; ++i) positions[i] = static_cast<Position>(stream.below(i, degree));
}

// A uniform subset of `fanout` < `degree` positions by Floyd's algorithm (Bentley, Floyd: "A sample of brilliance",
// CACM 1987): draw i is uniform in [0, degree - fanout + i]; a position that is taken already is replaced by the top of
// the range. `contains(i, position)` says whether one of the first i picks is `position`, and `record(i, position)` is
// told each pick; how they remember does not change the result.
template <typename Position, typename Contains, typename Record>
GLD_HOST_DEVICE inline void pick_without_replacement(NodeStream stream, int64_t degree, int64_t fanout,
                                                     Position* positions, Contains contains, Record record) {
  for (int64_t i = 0; i < fanout; ++i) {
    const int64_t top = degree - fanout + i;
    int64_t position = stream.below(i, top + 1);
    if (contains(i, position)) position = top;
    positions[i] = static_cast<Position>(position);
    record(i, position);
  }
}

// Remembers picks by the array they are written to: fastest for the fan-outs people use.
template <typename Position>
struct ScanOfPicks {
  const Position* positions;
  GLD_HOST_DEVICE bool operator()(int64_t count, int64_t position) const {
    bool found = false;  // no early exit: the loop vectorises
    for (int64_t j = 0; j < count; ++j) found |= static_cast<int64_t>(positions[j]) == position;
    return found;
  }
};

struct RecordNothing {
  GLD_HOST_DEVICE void operator()(int64_t, int64_t) const {}
};

template <typename Position>
GLD_HOST_DEVICE inline void pick_without_replacement(NodeStream stream, int64_t degree, int64_t fanout,
                                                     Position* positions) {
  pick_without_replacement(stream, degree, fanout, positions, ScanOfPicks<Position>{positions}, RecordNothing{});
}

// --- the smallest of many --------------------------------------------------------------------------------------------

// Of equal keys the one at the smaller position comes first.
struct InRowOrder {
  // No two positions have the same.
  GLD_HOST_DEVICE uint64_t number(int64_t position) const { return static_cast<uint64_t>(position); }
  GLD_HOST_DEVICE uint64_t largest(int64_t count) const { return static_cast<uint64_t>(count - 1); }
  GLD_HOST_DEVICE bool operator()(int64_t position, int64_t other) const { return position < other; }
};

// Keeps the `capacity` smallest (key, position) pairs of those offered, in two arrays of the caller: a heap whose root
// is the largest kept. `tie_before` orders the positions of equal keys.
template <typename Key, typename Position, typename TieBefore = InRowOrder>
class SmallestKeys {
 public:
  GLD_HOST_DEVICE SmallestKeys(Key* keys, Position* positions, int64_t capacity, TieBefore tie_before = {})
      : keys_(keys), positions_(positions), capacity_(capacity), tie_before_(tie_before) {}

  GLD_HOST_DEVICE void offer(Key key, Position position) {
    if (size_ < capacity_) return push(key, position);
    if (capacity_ > 0 && before(key, position, 0)) sift_down(key, position, size_);
  }

  // Ends in ascending order.
  GLD_HOST_DEVICE void sort() {
    for (int64_t end = size_ - 1; end > 0; --end) {
      const Key key = keys_[end];
      const Position position = positions_[end];
      place(end, keys_[0], positions_[0]);
      sift_down(key, position, end);
    }
  }

 private:
  GLD_HOST_DEVICE bool before(Key key, Position position, int64_t slot) const {
    return key < keys_[slot] || (key == keys_[slot] && tie_before_(position, positions_[slot]));
  }
  GLD_HOST_DEVICE void place(int64_t slot, Key key, Position position) {
    keys_[slot] = key;
    positions_[slot] = position;
  }
  GLD_HOST_DEVICE void push(Key key, Position position) {
    int64_t slot = size_++;
    while (slot > 0 && !before(key, position, (slot - 1) / 2)) {
      place(slot, keys_[(slot - 1) / 2], positions_[(slot - 1) / 2]);
      slot = (slot - 1) / 2;
    }
    place(slot, key, position);
  }
  // Puts an entry in the place of the root of the first `size` entries.
  GLD_HOST_DEVICE void sift_down(Key key, Position position, int64_t size) {
    int64_t slot = 0;
    for (int64_t child = 1; child < size; child = 2 * slot + 1) {
      if (child + 1 < size && before(keys_[child], positions_[child], child + 1)) ++child;
      if (!before(key, position, child)) break;
      place(slot, keys_[child], positions_[child]);
      slot = child;
    }
    place(slot, key, position);
  }

  Key* keys_;
  Position* positions_;
  int64_t capacity_, size_ = 0;
  TieBefore tie_before_;
};

// Puts positions in row order, in place. `keys` [count] is scratch memory.
template <typename Key, typename Position>
GLD_HOST_DEVICE inline void sort_positions(Position* positions, int64_t count, Key* keys) {
  SmallestKeys<Key, Position> by_position(keys, positions, count);
  for (int64_t j = 0; j < count; ++j) by_position.offer(static_cast<Key>(positions[j]), positions[j]);
  by_position.sort();
}

// Puts pairs of keys and positions in the order of SmallestKeys, in place.
template <typename Key, typename Position>
GLD_HOST_DEVICE inline void sort_by_key(Key* keys, Position* positions, int64_t count) {
  SmallestKeys<Key, Position> by_key(keys, positions, count);
  for (int64_t j = 0; j < count; ++j) by_key.offer(keys[j], positions[j]);
  by_key.sort();
}

// A number whose order is that of the values, of which none is NaN.
GLD_HOST_DEVICE inline uint64_t order_of(double value) {
  value += 0.0;  // of -0 that is 0
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  constexpr uint64_t kSign = uint64_t{1} << 63;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

// How many of the ascending `values` [count] are not above `limit`.
template <typename Value>
GLD_HOST_DEVICE inline int64_t count_up_to(const Value* values, int64_t count, Value limit) {
  int64_t first = 0;
  while (count > 0) {
    const int64_t half = count / 2;
    const bool is_right = values[first + half] <= limit;
    first = is_right ? first + half + 1 : first;
    count = is_right ? count - half - 1 : half;
  }
  return first;
}

// --- LABOR -----------------------------------------------------------------------------------------------------------

// The one random number of a neighbor, the same for every node of the frontier (and tree) that `key` belongs to.
GLD_HOST_DEVICE inline uint64_t labor_number(uint64_t key, int64_t neighbor) {
  return absorb(key, static_cast<uint64_t>(neighbor));
}

// Edges of equal number come in a random order, which is the node's own.
struct InStreamOrder {
  NodeStream stream;
  GLD_HOST_DEVICE uint64_t number(int64_t position) const { return stream.bits(position); }
  GLD_HOST_DEVICE uint64_t largest(int64_t) const { return ~uint64_t{0}; }
  GLD_HOST_DEVICE bool operator()(int64_t position, int64_t other) const { return number(position) < number(other); }
};

// The `fanout` < `count` neighbors of smallest number, in row order: LABOR-0 (Balin, Catalyurek: "Layer-Neighbor
// Sampling: Defusing Neighborhood Explosion in GNNs", NeurIPS 2023) in the form of sequential Poisson sampling
// (Ohlsson, Journal of Official Statistics 14, 1998), which takes exactly `fanout` where Poisson sampling takes
// `fanout` on average: each neighbor is included with probability fanout / count. Nodes share numbers, and so many of
// their picks. Edges to the same neighbor share its number: where only some of them fit, the node's own stream decides,
// so that each is as likely. `neighbor_at(i)` is the id of the row's i-th neighbor; `keys` [fanout] is scratch memory.
template <typename Position, typename NeighborAt>
GLD_HOST_DEVICE inline void pick_labor(uint64_t key, NodeStream stream, NeighborAt neighbor_at, int64_t count,
                                       int64_t fanout, Position* positions, uint64_t* keys) {
  SmallestKeys<uint64_t, Position, InStreamOrder> smallest(keys, positions, fanout, InStreamOrder{stream});
  for (int64_t i = 0; i < count; ++i) smallest.offer(labor_number(key, neighbor_at(i)), static_cast<Position>(i));
  sort_positions(positions, fanout, keys);
}

}  // namespace gld

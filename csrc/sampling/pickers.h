// Which of a node's neighbors are picked: positions within its row, as a pure function of the node's stream.
//
// One picker per method, for host and device. `fanout` -1 takes all. Positions come in the order of the draws unless a
// picker says otherwise. Memory is the caller's. Floating point is confined to operations that every IEEE machine
// rounds alike and no compiler can contract into others: sums are formed once when a graph is built, and pickers
// compare, multiply and divide.
#pragma once
#include <cstdint>

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

// Keeps the `capacity` smallest (key, position) pairs of those offered, in two arrays of the caller: a heap whose root
// is the largest kept.
template <typename Key, typename Position>
class SmallestKeys {
 public:
  GLD_HOST_DEVICE SmallestKeys(Key* keys, Position* positions, int64_t capacity)
      : keys_(keys), positions_(positions), capacity_(capacity) {}

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
    return key < keys_[slot] || (key == keys_[slot] && position < positions_[slot]);
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
};

// --- by weight -------------------------------------------------------------------------------------------------------

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

// Up to this length of a row, counting the sums that are not above a number finds its place faster than bisection.
constexpr int64_t kCountLimit = 48;

// Uniform in [0, 1): a multiple of 2^-53, exact.
GLD_HOST_DEVICE inline double unit_of(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// The position that a draw leads to by the inverse of the cumulative weights `sums` [count], whose last is positive:
// the first whose sum exceeds a uniform number in [0, total). Edges of weight 0 raise no sum and are never found.
GLD_HOST_DEVICE inline int64_t weighted_position(const double* sums, int64_t count, uint64_t bits) {
  const double total = sums[count - 1];
  double drawn = unit_of(bits) * total;
  // The product is below the total, but among the subnormal numbers it may be rounded to it.
  if (!(drawn < total)) drawn = 0;
  if (count > kCountLimit) return count_up_to(sums, count, drawn);
  int64_t first = 0;
  for (int64_t i = 0; i < count; ++i) first += sums[i] <= drawn;  // no branch: the loop vectorises
  return first;
}

template <typename Position>
GLD_HOST_DEVICE inline void pick_weighted_with_replacement(NodeStream stream, const double* sums, int64_t count,
                                                           int64_t fanout, Position* positions) {
  for (int64_t i = 0; i < fanout; ++i)
    positions[i] = static_cast<Position>(weighted_position(sums, count, stream.bits(i)));
}

// All edges of positive weight, in row order.
template <typename Position>
GLD_HOST_DEVICE inline void pick_all_positive(const double* sums, int64_t count, Position* positions) {
  double before = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (sums[i] > before) *positions++ = static_cast<Position>(i);
    before = sums[i];
  }
}

// A number of the exponential distribution of mean 1, by comparisons alone (von Neumann: "Various techniques used in
// connection with random digits", 1951): a run u1 > u2 > ... that ends at an odd length has probability exp(-u1). No
// logarithm, which no two libraries round alike.
GLD_HOST_DEVICE inline double exponential_of(NodeStream stream) {
  int64_t draw = 0;
  for (int64_t whole = 0;; ++whole) {
    const uint64_t first = stream.bits(draw++);
    uint64_t last = first, next = stream.bits(draw++);
    bool is_odd = true;
    for (; next < last; next = stream.bits(draw++)) {
      last = next;
      is_odd = !is_odd;
    }
    if (is_odd) return static_cast<double>(whole) + unit_of(first);
  }
}

// Draws of inverse cumulative weights after which what is missing is picked in another way.
GLD_HOST_DEVICE inline int64_t weighted_draws(int64_t fanout) { return 4 * fanout + 16; }

// `fanout` positions, fewer than there are edges of positive weight, by successive sampling: each pick is one of the
// edges left with a probability proportional to its weight. `keys` [fanout] is scratch memory; for `contains` and
// `record` see pick_without_replacement().
//
// Draws with replacement of which repeated edges are passed over are a successive sample. A row in which few edges have
// nearly all the weight would need too many of them, so that after weighted_draws(fanout) the picks still missing are
// the edges left with the smallest keys, exponential numbers divided by weights (Efraimidis, Spirakis: "Weighted random
// sampling with a reservoir", IPL 2006, in the form of a race). Given all draws so far, either continuation picks from
// the same edges with the same successive probabilities, from numbers that nothing before has used: so does the whole.
template <typename Position, typename Contains, typename Record>
GLD_HOST_DEVICE inline void pick_weighted_without_replacement(NodeStream stream, const double* sums, int64_t count,
                                                              int64_t fanout, Position* positions, double* keys,
                                                              Contains contains, Record record) {
  const int64_t num_draws = weighted_draws(fanout);
  int64_t found = 0;
  for (int64_t draw = 0; found < fanout && draw < num_draws; ++draw) {
    const int64_t position = weighted_position(sums, count, stream.bits(draw));
    if (contains(found, position)) continue;
    positions[found] = static_cast<Position>(position);
    record(found++, position);
  }
  if (found == fanout) return;
  SmallestKeys<double, Position> race(keys, positions + found, fanout - found);
  const uint64_t race_key = stream.bits(num_draws);
  double before = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double weight = sums[i] - before;
    before = sums[i];
    if (weight > 0 && !contains(found, i))
      race.offer(exponential_of(NodeStream(race_key, i)) / weight, static_cast<Position>(i));
  }
  race.sort();
}

// --- LABOR -----------------------------------------------------------------------------------------------------------

// The one random number of a neighbor, the same for every node of the frontier (and tree) that `key` belongs to.
GLD_HOST_DEVICE inline uint64_t labor_number(uint64_t key, int64_t neighbor) {
  return absorb(key, static_cast<uint64_t>(neighbor));
}

// The `fanout` < `count` neighbors of smallest number, in row order: LABOR-0 (Balin, Catalyurek: "Layer-Neighbor
// Sampling: Defusing Neighborhood Explosion in GNNs", NeurIPS 2023) in the form of sequential Poisson sampling
// (Ohlsson, Journal of Official Statistics 14, 1998), which takes exactly `fanout` where Poisson sampling takes
// `fanout` on average: each neighbor is included with probability fanout / count. Nodes share numbers, and so many of
// their picks. Among repeated edges the first positions win. `neighbor_at(i)` is the id of the row's i-th neighbor;
// `keys` [fanout] is scratch memory.
template <typename Position, typename NeighborAt>
GLD_HOST_DEVICE inline void pick_labor(uint64_t key, NeighborAt neighbor_at, int64_t count, int64_t fanout,
                                       Position* positions, uint64_t* keys) {
  SmallestKeys<uint64_t, Position> smallest(keys, positions, fanout);
  for (int64_t i = 0; i < count; ++i) smallest.offer(labor_number(key, neighbor_at(i)), static_cast<Position>(i));
  SmallestKeys<uint64_t, Position> by_position(keys, positions, fanout);  // what is kept, in place
  for (int64_t j = 0; j < fanout; ++j) by_position.offer(static_cast<uint64_t>(positions[j]), positions[j]);
  by_position.sort();
}

}  // namespace gld

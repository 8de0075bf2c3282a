// Picks by weight, with and without replacement, for host and device.
//
// Both are exact: nothing is rounded but the random numbers, which have 64 bits, and the clocks of the race, of which
// the order alone counts. See graph/weights.h for the units that weights are counted in.
#pragma once
#include <cstdint>
#include <cstring>

#include "common/host_device.h"
#include "common/rng.h"
#include "graph/weights.h"
#include "sampling/pickers.h"

namespace gld {

// A row, or the beginning of one, some of whose weights are positive.
struct WeightedRow {
  const double* sums;  // UnitSum [count]
  WeightReader weight_at;
  int64_t start;  // of its weights
  int64_t count;

  GLD_HOST_DEVICE double weight(int64_t position) const { return weight_at(start + position); }
};

// Up to this length of a row, counting the sums that are not above a number finds its place faster than bisection.
constexpr int64_t kCountLimit = 48;

constexpr int64_t kNotDrawn = -1;

// In front of what nearly no draw needs, so that it takes no registers from what each does.
#ifdef __CUDACC__
#define GLD_RARELY __noinline__
#else
#define GLD_RARELY __attribute__((noinline, cold))
#endif

// The position itself with a probability of what its weight has beside whole units, else kNotDrawn.
GLD_RARELY GLD_HOST_DEVICE inline int64_t attempt_rest(const WeightedRow& row, int64_t position, int unit,
                                                       uint64_t bits) {
  return NodeStream(bits).bits(0) < WeightDigits(row.weight(position)).rest_of_unit(unit) ? position : kNotDrawn;
}

// One attempt to draw a position with a probability proportional to its weight. A number below (whole units of the row
// + edges of the row) falls among the units, of which each belongs to an edge, or to an edge, which then comes with a
// probability of what its weight has beside whole units: else the attempt has failed. Each edge thus has weight / unit
// of the numbers. A whole row has 2^51 units or nearly so and an attempt fails once in 2^51 / edges; one that the times
// cut off before its heavy edges may have few units, and its attempts fail more often.
GLD_HOST_DEVICE inline int64_t attempt_by_weight(const WeightedRow& row, uint64_t bits) {
  const UnitSum total(row.sums[row.count - 1]);
  const uint64_t num_units = total.number();
  const uint64_t drawn = multiply_high(bits, num_units + static_cast<uint64_t>(row.count));
  if (drawn >= num_units) return attempt_rest(row, static_cast<int64_t>(drawn - num_units), total.unit(), bits);
  const double limit = total.with_number(drawn).packed();
  if (row.count > kCountLimit) return count_up_to(row.sums, row.count, limit);
  int64_t first = 0;
  for (int64_t i = 0; i < row.count; ++i) first += row.sums[i] <= limit;  // no branch: the loop vectorises
  return first;
}

// A number of the exponential distribution of mean 1, by comparisons alone (von Neumann: "Various techniques used in
// connection with random digits", 1951): a run u1 > u2 > ... that ends at an odd length has probability exp(-u1). No
// logarithm, which no two libraries round alike. Never 0.
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
    if (is_odd) return static_cast<double>(whole) + (static_cast<double>(first) + 0.5) * 0x1p-64;
  }
}

// exponential / weight as a number whose order is that of the quotients. Weights have quotients far outside of what a
// double holds: what is divided is the weight without its exponent, which is subtracted from the quotient's, in 12 bits
// in front of 52.
GLD_HOST_DEVICE inline uint64_t clock_of(double exponential, double weight) {
  WeightDigits parts(weight);
  for (; parts.digits >> 52 == 0; parts.digits <<= 1) --parts.exponent;  // a subnormal number
  const double quotient = exponential / static_cast<double>(parts.digits);
  uint64_t bits;
  std::memcpy(&bits, &quotient, sizeof(bits));
  const int64_t field = static_cast<int64_t>(bits >> 52) - parts.exponent + 128;  // at least 62, below 2232
  return static_cast<uint64_t>(field) << 52 | (bits & UnitSum::kNumberMask);
}

// When an edge's clock rings in a race; false where its weight is 0, so that it never does.
GLD_HOST_DEVICE inline bool find_clock(uint64_t key, const WeightedRow& row, int64_t position, uint64_t* clock) {
  const double weight = row.weight(position);
  if (!(weight > 0)) return false;
  *clock = clock_of(exponential_of(NodeStream(key, position)), weight);
  return true;
}

// The `num_winners` edges of positive weight whose clocks ring first, in that order, and passing over those that
// is_out(position) names: an edge's clock rings after an exponential time divided by its weight (Efraimidis, Spirakis:
// "Weighted random sampling with a reservoir", IPL 2006, in the form of a race), so that each of those left is the next
// with a probability proportional to its weight. `clocks` [num_winners] is scratch memory.
template <typename Position, typename IsOut>
GLD_HOST_DEVICE inline void race_by_weight(uint64_t key, const WeightedRow& row, int64_t num_winners,
                                           Position* positions, uint64_t* clocks, IsOut is_out) {
  SmallestKeys<uint64_t, Position> first(clocks, positions, num_winners);
  for (int64_t i = 0; i < row.count; ++i) {
    uint64_t clock;
    if (!is_out(i) && find_clock(key, row, i, &clock)) first.offer(clock, static_cast<Position>(i));
  }
  first.sort();
}

// Failed attempts after which a position is decided by a race.
constexpr int kAttempts = 8;

// Goes on after a first attempt that has failed.
GLD_RARELY GLD_HOST_DEVICE inline int64_t pick_by_weight_again(const WeightedRow& row, uint64_t bits) {
  for (int attempt = 1; attempt < kAttempts; ++attempt) {
    bits = NodeStream(bits).bits(1);
    const int64_t position = attempt_by_weight(row, bits);
    if (position != kNotDrawn) return position;
  }
  int64_t winner = 0;
  uint64_t clock;
  race_by_weight(NodeStream(bits).bits(1), row, 1, &winner, &clock, [](int64_t) { return false; });
  return winner;
}

// The pick-th of picks with replacement: a position with a probability proportional to its weight.
GLD_HOST_DEVICE inline int64_t pick_by_weight(NodeStream stream, const WeightedRow& row, int64_t pick) {
  const uint64_t bits = stream.bits(pick);
  const int64_t position = attempt_by_weight(row, bits);
  return position != kNotDrawn ? position : pick_by_weight_again(row, bits);
}

// Attempts after which what is missing of picks without replacement is decided by a race.
GLD_HOST_DEVICE inline int64_t weighted_attempts(int64_t fanout) { return 4 * fanout + 16; }

// The first part of pick_weighted_without_replacement(), which does not read the row: gives how many picks it made.
template <typename Position, typename Contains, typename Record>
GLD_HOST_DEVICE inline int64_t attempt_distinct(NodeStream stream, const WeightedRow& row, int64_t fanout,
                                                Position* positions, Contains contains, Record record) {
  const int64_t num_attempts = weighted_attempts(fanout);
  int64_t found = 0;
  for (int64_t attempt = 0; found < fanout && attempt < num_attempts; ++attempt) {
    const int64_t position = attempt_by_weight(row, stream.bits(attempt));
    if (position == kNotDrawn || contains(found, position)) continue;
    positions[found] = static_cast<Position>(position);
    record(found++, position);
  }
  return found;
}

// The key of the race that makes the picks that are missing then.
GLD_HOST_DEVICE inline uint64_t race_key(NodeStream stream, int64_t fanout) {
  return stream.bits(weighted_attempts(fanout));
}

// `fanout` positions, fewer than there are edges of positive weight, by successive sampling: each pick is one of the
// edges left with a probability proportional to its weight. `clocks` [fanout] is scratch memory; for `contains` and
// `record` see pick_without_replacement().
//
// Draws with replacement of which repeated edges are passed over are a successive sample. A row in which few edges have
// nearly all the weight would need too many of them, so that after weighted_attempts(fanout) the picks still missing
// are decided by a race of the edges left. Given all draws so far, either continuation picks from the same edges with
// the same successive probabilities, from numbers that nothing before has used: so does the whole.
template <typename Position, typename Contains, typename Record>
GLD_HOST_DEVICE inline void pick_weighted_without_replacement(NodeStream stream, const WeightedRow& row, int64_t fanout,
                                                              Position* positions, uint64_t* clocks, Contains contains,
                                                              Record record) {
  const int64_t found = attempt_distinct(stream, row, fanout, positions, contains, record);
  if (found == fanout) return;
  race_by_weight(race_key(stream, fanout), row, fanout - found, positions + found, clocks,
                 [&contains, found](int64_t position) { return contains(found, position); });
}

// All edges of positive weight, in row order; `positive_counts` [count] as in graph/weights.h, or null.
template <typename Position>
GLD_HOST_DEVICE inline void pick_all_positive(const int32_t* positive_counts, int64_t count, Position* positions) {
  if (positive_counts == nullptr) return pick_all(count, positions);
  int32_t before = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (positive_counts[i] > before) *positions++ = static_cast<Position>(i);
    before = positive_counts[i];
  }
}

}  // namespace gld

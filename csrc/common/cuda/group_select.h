// The smallest of many numbers, found by a group of threads (group_scan.h), for host and device: digit by digit, from
// the highest, the threads count the numbers that begin as the limit does (radix selection; Alabi, Blanchard, Gordon,
// Steinbach: "Fast k-selection algorithms for graphics processing units", JEA 17, 2012). What is found does not depend
// on the order of the threads, nor on that of the numbers.
#pragma once
#include <cstdint>

#include "common/atomics.h"
#include "common/cuda/group_scan.h"
#include "common/host_device.h"

namespace gld {

// What ends the smallest numbers: those below `key` are among them, and `num_equal` of those that are equal to it.
struct KeyLimit {
  uint64_t key;
  int64_t num_equal;
  bool is_shared;  // more are equal to it
};

// The limit of the `wanted` smallest of numbers. key_of(i, &key) gives the i-th of `count`, or false where that is
// none; there are `wanted` at least, and that is at least 1. None is above `largest`.
template <typename Group, typename KeyOf>
GLD_HOST_DEVICE KeyLimit limit_of_smallest(Group& group, int64_t count, int64_t wanted, uint64_t largest,
                                           const KeyOf& key_of) {
  constexpr int kDigitBits = 8;
  static_assert(kGroupThreads == 1 << kDigitBits, "a thread adds up the numbers of one digit");
  uint64_t* counts = reinterpret_cast<uint64_t*>(group.memory);
  uint64_t begin = 0;  // the limit's digits until now
  int shift = 64 - kDigitBits;
  while (shift > 0 && largest >> shift == 0) shift -= kDigitBits;
  for (;; shift -= kDigitBits) {
    group.each([&](int thread) { counts[thread] = 0; });
    group.each([&](int thread) {
      for (int64_t i = thread; i < count; i += kGroupThreads) {
        uint64_t key;
        if (!key_of(i, &key)) continue;
        const uint64_t digit = (key ^ begin) >> shift;  // with a difference in the digits before, it is none
        if (digit < kGroupThreads) atomic_add(counts + digit, 1);
      }
    });
    const int64_t* up_to = sums_of_threads(group, [&](int thread) { return static_cast<int64_t>(counts[thread]); });
    int64_t* found = group.memory + (up_to == group.memory ? kGroupThreads : 0);
    group.each([&](int thread) {
      const int64_t before = thread > 0 ? up_to[thread - 1] : 0;
      if (before >= wanted || up_to[thread] < wanted) return;
      found[0] = thread;
      found[1] = before;
      found[2] = up_to[thread] - before;
    });
    begin |= static_cast<uint64_t>(found[0]) << shift;
    wanted -= found[1];
    const int64_t num_here = found[2];
    group.each([](int) {});  // all have read it
    const uint64_t rest = (uint64_t{1} << shift) - 1;
    if (shift == 0 || wanted == num_here) return {begin | rest, wanted, wanted < num_here};
  }
}

// store(slot, i, key) for each of the `wanted` smallest numbers, slots [0, wanted) in any order. Of equal numbers those
// of the lowest tie.number(i), which no two have, come first; none is above tie.largest(count).
template <typename Group, typename KeyOf, typename Tie, typename Store>
GLD_HOST_DEVICE void take_smallest(Group& group, int64_t count, int64_t wanted, const KeyOf& key_of, const Tie& tie,
                                   const Store& store) {
  constexpr uint64_t kLargest = ~uint64_t{0};
  const KeyLimit limit = limit_of_smallest(group, count, wanted, kLargest, key_of);
  uint64_t last_tie = kLargest;
  if (limit.is_shared) {
    const auto tie_at_limit = [&](int64_t i, uint64_t* number) {
      uint64_t key;
      if (!key_of(i, &key) || key != limit.key) return false;
      *number = tie.number(i);
      return true;
    };
    last_tie = limit_of_smallest(group, count, limit.num_equal, tie.largest(count), tie_at_limit).key;
  }
  uint64_t* num_taken = reinterpret_cast<uint64_t*>(group.memory);
  group.each([&](int thread) {
    if (thread == 0) *num_taken = 0;
  });
  group.each([&](int thread) {
    for (int64_t i = thread; i < count; i += kGroupThreads) {
      uint64_t key;
      if (!key_of(i, &key) || key > limit.key || (key == limit.key && tie.number(i) > last_tie)) continue;
      store(static_cast<int64_t>(atomic_add(num_taken, 1)), i, key);
    }
  });
}

}  // namespace gld

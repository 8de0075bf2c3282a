// Running sums of numbers that a functor gives, in one launch, for host and device: each group sums a tile of numbers,
// tells the others, and learns from them what comes before it, as soon as they know it themselves (Merrill, Garland:
// "Single-pass parallel prefix scan with decoupled look-back", NVIDIA technical report 2016-002).
//
// A scan has: count(), how many numbers; measure(i), called once for each, before anything else that follows; value(i),
// the i-th, which may be asked for more than once; store(i, value, before), told the sum of those before it; and
// finish(total), called once, by the last tile. measure(), value() and store() may be called from any thread in any
// order, stores of one tile before values of another. count() must not depend on what any of them changes.
//
// Threads of one group meet in steps: group.each(step) calls step(thread) for each of kGroupThreads threads, and what a
// step wrote to group.memory is seen by the next. On the device a step ends in a barrier; on the host the threads of a
// step run one after the other.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/atomics.h"
#include "common/host_device.h"

namespace gld {

constexpr int kGroupThreads = 256;
// So few that a hop of 700,000 edges has tiles for all that an H200 runs at once: threads wait for memory, and their
// number is what hides it.
constexpr int kScanPerThread = 4;
constexpr int64_t kScanTile = int64_t{kGroupThreads} * kScanPerThread;
constexpr int kGroupMemory = 2 * kGroupThreads;  // int64, per group

GLD_HOST_DEVICE inline int64_t num_scan_tiles(int64_t count) { return (count + kScanTile - 1) / kScanTile; }

// Numbers [begin, end).
struct ScanRange {
  int64_t begin, end;

  GLD_HOST_DEVICE ScanRange part(int64_t first, int64_t length) const {
    return {first < end ? first : end, first + length < end ? first + length : end};
  }
  GLD_HOST_DEVICE ScanRange tile(int64_t number) const { return part(begin + number * kScanTile, kScanTile); }
  GLD_HOST_DEVICE ScanRange of_thread(int thread) const {
    return part(begin + int64_t{thread} * kScanPerThread, kScanPerThread);
  }
};

// The sums of what own(thread) gives for threads up to and with each, in log2(kGroupThreads) steps (Hillis, Steele:
// "Data parallel algorithms", CACM 1986). Gives where they lie in group.memory.
template <typename Group, typename Own>
GLD_HOST_DEVICE const int64_t* sums_of_threads(Group& group, Own own) {
  int64_t *sums = group.memory, *next = group.memory + kGroupThreads;
  group.each([&](int thread) { sums[thread] = own(thread); });
  for (int reach = 1; reach < kGroupThreads; reach *= 2) {
    group.each([&](int thread) { next[thread] = sums[thread] + (thread >= reach ? sums[thread - reach] : 0); });
    int64_t* other = sums;
    sums = next;
    next = other;
  }
  return sums;
}

// The last of them: their total, once all threads have read it.
template <typename Group>
GLD_HOST_DEVICE int64_t take_total(Group& group, const int64_t* sums) {
  const int64_t total = sums[kGroupThreads - 1];
  group.each([](int) {});
  return total;
}

// The sum of value(i) over a range of any length.
template <typename Group, typename Value>
GLD_HOST_DEVICE int64_t sum_range(Group& group, ScanRange range, Value value) {
  const int64_t* sums = sums_of_threads(group, [&](int thread) {
    int64_t sum = 0;
    for (int64_t i = range.begin + thread; i < range.end; i += kGroupThreads) sum += value(i);
    return sum;
  });
  return take_total(group, sums);
}

// store(i, value(i), sum before it) over a range of any length, where `before` is the sum before the range. Gives the
// sum before what follows it. No store may change a value of a later tile.
template <typename Group, typename Value, typename Store>
GLD_HOST_DEVICE int64_t scan_range(Group& group, ScanRange range, int64_t before, Value value, Store store) {
  const int64_t num_tiles = num_scan_tiles(range.end - range.begin);
  for (int64_t number = 0; number < num_tiles; ++number) {
    const ScanRange tile = range.tile(number);
    const int64_t* sums = sums_of_threads(group, [&](int thread) {
      int64_t sum = 0;
      const ScanRange own = tile.of_thread(thread);
      for (int64_t i = own.begin; i < own.end; ++i) sum += value(i);
      return sum;
    });
    group.each([&](int thread) {
      int64_t sum = before + (thread > 0 ? sums[thread - 1] : 0);
      const ScanRange own = tile.of_thread(thread);
      for (int64_t i = own.begin; i < own.end; ++i) {
        const int64_t number_here = value(i);
        store(i, number_here, sum);
        sum += number_here;
      }
    });
    before += take_total(group, sums);
  }
  return before;
}

// What groups tell each other: words, all bits set before the launch. The first counts the tiles that were taken, the
// others are the tiles': nothing yet, the sum of the tile, or the sum up to its end.
struct TileSums {
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  uint64_t* words;

  static int64_t num_words(int64_t max_count) { return 2 + num_scan_tiles(max_count); }

  // Tiles are taken in order, so that a group waits only for those that run already, whatever the order in which
  // groups begin.
  GLD_HOST_DEVICE int64_t take() const { return static_cast<int64_t>(atomic_add(words, 1) + 1); }
  GLD_HOST_DEVICE void tell(int64_t tile, int64_t sum, bool is_up_to_end) const {
    atomic_write(words + 1 + tile, static_cast<uint64_t>(sum) << 1 | (is_up_to_end ? 1 : 0));
  }
  // What a tile has told, waiting for it; before the first there is nothing.
  GLD_HOST_DEVICE int64_t told(int64_t tile) const {
    if (tile < 0) return 1;
    uint64_t found = kUnknown;
    while (found == kUnknown) found = atomic_read(words + 1 + tile);
    return static_cast<int64_t>(found);
  }
};

// The sum of all tiles before one whose own sum is `sum`, which the others learn. `memory` is int64 [kGroupThreads].
template <typename Group>
GLD_HOST_DEVICE int64_t look_back(Group& group, const TileSums& sums, int64_t tile, int64_t sum, int64_t* memory) {
  group.each([&](int thread) {
    if (thread == 0) sums.tell(tile, sum, tile == 0);
  });
  int64_t before = 0;
  bool is_known = tile == 0;
  for (int64_t end = tile; !is_known; end -= kGroupThreads) {
    group.each([&](int thread) { memory[thread] = sums.told(end - 1 - thread); });
    for (int thread = 0; thread < kGroupThreads && !is_known; ++thread) {
      before += memory[thread] >> 1;
      is_known = (memory[thread] & 1) != 0;
    }
    group.each([](int) {});  // all have read it
  }
  group.each([&](int thread) {
    if (thread == 0 && tile > 0) sums.tell(tile, before + sum, true);
  });
  return before;
}

// The launch: a group per tile, and one where there are no numbers.
template <typename Scan>
struct RunScan {
  Scan scan;
  TileSums sums;

  GLD_HOST_DEVICE int64_t num_groups() const { return num_tiles(scan.count()); }
  static GLD_HOST_DEVICE int64_t num_tiles(int64_t count) { return count > 0 ? num_scan_tiles(count) : 1; }

  template <typename Group>
  GLD_HOST_DEVICE void operator()(Group& group, int64_t) const {
    const int64_t count = scan.count();
    group.each([&](int thread) {
      if (thread == 0) group.memory[0] = sums.take();
    });
    const int64_t tile = group.memory[0];
    const ScanRange range = ScanRange{0, count}.tile(tile);
    group.each([&](int thread) {
      for (int64_t i = range.begin + thread; i < range.end; i += kGroupThreads) scan.measure(i);
    });
    const int64_t* up_to = sums_of_threads(group, [&](int thread) {
      int64_t sum = 0;
      const ScanRange own = range.of_thread(thread);
      for (int64_t i = own.begin; i < own.end; ++i) sum += scan.value(i);
      return sum;
    });
    const int64_t sum = up_to[kGroupThreads - 1];
    int64_t* other = group.memory + (up_to == group.memory ? kGroupThreads : 0);
    const int64_t before = look_back(group, sums, tile, sum, other);
    group.each([&](int thread) {
      int64_t at = before + (thread > 0 ? up_to[thread - 1] : 0);
      const ScanRange own = range.of_thread(thread);
      for (int64_t i = own.begin; i < own.end; ++i) {
        const int64_t number = scan.value(i);
        scan.store(i, number, at);
        at += number;
      }
      if (thread == 0 && tile == num_tiles(count) - 1) scan.finish(before + sum);
    });
  }
};

// A scan: counts become offsets.
struct SumCounts {
  int64_t num_counts;
  const int64_t* counts;
  int64_t *offsets, *total;  // [num_counts], [1]

  GLD_HOST_DEVICE int64_t count() const { return num_counts; }
  GLD_HOST_DEVICE void measure(int64_t) const {}
  GLD_HOST_DEVICE int64_t value(int64_t i) const { return counts[i]; }
  GLD_HOST_DEVICE void store(int64_t i, int64_t, int64_t before) const { offsets[i] = before; }
  GLD_HOST_DEVICE void finish(int64_t sum) const { *total = sum; }
};

// `max_count` bounds scan.count(), for the size of the launch; `words` has TileSums::num_words(max_count) entries.
template <typename Executor, typename Scan>
void run_scan(Executor& executor, int64_t max_count, const Scan& scan, uint64_t* words) {
  executor.fill(words, 0xFF, static_cast<size_t>(TileSums::num_words(max_count)) * sizeof(uint64_t));
  executor.for_each_group(RunScan<Scan>::num_tiles(max_count), RunScan<Scan>{scan, {words}});
}

}  // namespace gld

// Running sums of numbers that a functor gives, in three launches, for host and device.
//
// A scan has: count(), how many numbers; value(i), the i-th, which a launch may ask for more than once; store(i, value,
// before), told the sum of those before it; and finish(total), called once, before any store(). All but the last may be
// called from any thread in any order.
//
// Threads of one group meet in steps: group.each(step) calls step(thread) for each of kGroupThreads threads, and what a
// step wrote to group.memory is seen by the next. On the device a step ends in a barrier; on the host the threads of a
// step run one after the other.
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace gld {

constexpr int kGroupThreads = 256;
constexpr int kScanPerThread = 8;
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

// First launch, a group per tile: the sum of each tile.
template <typename Scan>
struct SumTiles {
  Scan scan;
  int64_t* tile_sums;

  GLD_HOST_DEVICE int64_t num_groups() const { return num_scan_tiles(scan.count()); }
  template <typename Group>
  GLD_HOST_DEVICE void operator()(Group& group, int64_t tile) const {
    const ScanRange range = ScanRange{0, scan.count()}.tile(tile);
    const int64_t sum = sum_range(group, range, [this](int64_t i) { return scan.value(i); });
    group.each([&](int thread) {
      if (thread == 0) tile_sums[tile] = sum;
    });
  }
};

// Second launch, one group: the sum before each tile in place of its own, and the total.
template <typename Scan>
struct ScanTiles {
  Scan scan;
  int64_t* tile_sums;

  GLD_HOST_DEVICE int64_t num_groups() const { return 1; }
  template <typename Group>
  GLD_HOST_DEVICE void operator()(Group& group, int64_t) const {
    const auto sum_at = [this](int64_t i) { return tile_sums[i]; };
    const auto replace = [this](int64_t i, int64_t, int64_t before) { tile_sums[i] = before; };
    const int64_t total = scan_range(group, {0, num_scan_tiles(scan.count())}, 0, sum_at, replace);
    group.each([&](int thread) {
      if (thread == 0) scan.finish(total);
    });
  }
};

// Third launch, a group per tile: store() for each number.
template <typename Scan>
struct StoreTiles {
  Scan scan;
  const int64_t* tile_sums;

  GLD_HOST_DEVICE int64_t num_groups() const { return num_scan_tiles(scan.count()); }
  template <typename Group>
  GLD_HOST_DEVICE void operator()(Group& group, int64_t tile) const {
    const auto value = [this](int64_t i) { return scan.value(i); };
    const auto store = [this](int64_t i, int64_t number, int64_t before) { scan.store(i, number, before); };
    scan_range(group, ScanRange{0, scan.count()}.tile(tile), tile_sums[tile], value, store);
  }
};

// A scan: counts become offsets.
struct SumCounts {
  int64_t num_counts;
  const int64_t* counts;
  int64_t *offsets, *total;  // [num_counts], [1]

  GLD_HOST_DEVICE int64_t count() const { return num_counts; }
  GLD_HOST_DEVICE int64_t value(int64_t i) const { return counts[i]; }
  GLD_HOST_DEVICE void store(int64_t i, int64_t, int64_t before) const { offsets[i] = before; }
  GLD_HOST_DEVICE void finish(int64_t sum) const { *total = sum; }
};

// `max_count` bounds scan.count(), for the size of the launches; `tile_sums` has num_scan_tiles(max_count) entries.
template <typename Executor, typename Scan>
void run_scan(Executor& executor, int64_t max_count, const Scan& scan, int64_t* tile_sums) {
  const int64_t max_tiles = num_scan_tiles(max_count);
  executor.for_each_group(max_tiles, SumTiles<Scan>{scan, tile_sums});
  executor.for_each_group(1, ScanTiles<Scan>{scan, tile_sums});
  executor.for_each_group(max_tiles, StoreTiles<Scan>{scan, tile_sums});
}

}  // namespace gld

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

struct ScanRange {
  int64_t begin, end;
  GLD_HOST_DEVICE static ScanRange of_thread(int64_t begin, int64_t end, int thread) {
    const int64_t first = begin + int64_t{thread} * kScanPerThread;
    return {first < end ? first : end, first + kScanPerThread < end ? first + kScanPerThread : end};
  }
};

// The sums of the values of threads up to and with each, in log2(kGroupThreads) steps (Hillis, Steele: "Data parallel
// algorithms", CACM 1986), for numbers [begin, end) of at most a tile. Gives where they lie in group.memory.
template <typename Group, typename Value>
GLD_HOST_DEVICE int64_t* sums_of_threads(Group& group, int64_t begin, int64_t end, Value value) {
  int64_t *sums = group.memory, *next = group.memory + kGroupThreads;
  group.each([&](int thread) {
    int64_t sum = 0;
    const ScanRange own = ScanRange::of_thread(begin, end, thread);
    for (int64_t i = own.begin; i < own.end; ++i) sum += value(i);
    sums[thread] = sum;
  });
  for (int reach = 1; reach < kGroupThreads; reach *= 2) {
    group.each([&](int thread) { next[thread] = sums[thread] + (thread >= reach ? sums[thread - reach] : 0); });
    int64_t* other = sums;
    sums = next;
    next = other;
  }
  return sums;
}

// First launch, a group per tile: the sum of each tile.
template <typename Scan>
struct SumTiles {
  Scan scan;
  int64_t* tile_sums;

  GLD_HOST_DEVICE int64_t num_groups() const { return num_scan_tiles(scan.count()); }
  template <typename Group>
  GLD_HOST_DEVICE void operator()(Group& group, int64_t tile) const {
    const int64_t count = scan.count(), begin = tile * kScanTile;
    const int64_t end = begin + kScanTile < count ? begin + kScanTile : count;
    const int64_t* sums = sums_of_threads(group, begin, end, [this](int64_t i) { return scan.value(i); });
    group.each([&](int thread) {
      if (thread == 0) tile_sums[tile] = sums[kGroupThreads - 1];
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
    const int64_t num_tiles = num_scan_tiles(scan.count());
    int64_t total = 0;
    for (int64_t begin = 0; begin < num_tiles; begin += kScanTile) {
      const int64_t end = begin + kScanTile < num_tiles ? begin + kScanTile : num_tiles;
      const int64_t* sums = sums_of_threads(group, begin, end, [this](int64_t i) { return tile_sums[i]; });
      group.each([&](int thread) {
        int64_t before = total + (thread > 0 ? sums[thread - 1] : 0);
        const ScanRange own = ScanRange::of_thread(begin, end, thread);
        for (int64_t i = own.begin; i < own.end; ++i) {
          const int64_t sum = tile_sums[i];
          tile_sums[i] = before;
          before += sum;
        }
      });
      total += sums[kGroupThreads - 1];
      group.each([](int) {});  // the sums are read before the next tiles overwrite them
    }
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
    const int64_t count = scan.count(), begin = tile * kScanTile;
    const int64_t end = begin + kScanTile < count ? begin + kScanTile : count;
    const int64_t* sums = sums_of_threads(group, begin, end, [this](int64_t i) { return scan.value(i); });
    group.each([&](int thread) {
      int64_t before = tile_sums[tile] + (thread > 0 ? sums[thread - 1] : 0);
      const ScanRange own = ScanRange::of_thread(begin, end, thread);
      for (int64_t i = own.begin; i < own.end; ++i) {
        const int64_t value = scan.value(i);
        scan.store(i, value, before);
        before += value;
      }
    });
  }
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

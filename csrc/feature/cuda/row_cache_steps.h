// The kernels of a gather by way of a cache of rows (row_cache.h), as functors for host and device: two launches before
// that of the gather itself, which reads slots and fills those that were given to rows.
//
// Launches of one cache follow each other. A row that this gather uses keeps its slot until the next; so what a slot
// holds, and which rows are new there, is the same for all threads that read it.
#pragma once
#include <cstdint>

#include "common/atomics.h"
#include "common/host_device.h"
#include "feature/cuda/gather_steps.h"

namespace gld {

// A thread per wanted row counts its use, once a gather however often it is wanted, and finds its slot.
struct CountUses {
  WantedRows wanted;

  GLD_HOST_DEVICE int64_t count() const { return wanted.num_wanted; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    const RowCacheView& cache = wanted.cache;
    const int64_t row = wanted.cached_row(i);
    cache.answers[i] = RowCacheView::kMissed;
    if (row < 0) return;
    // Threads of the same row write the same, if they do not find it written.
    RowUse use{atomic_read(cache.uses + row)};
    if (use.last_gather() != cache.gather) {
      use = use.used_in(cache.gather);
      atomic_write(cache.uses + row, use.word);
    }
    if (use.slot() >= 0) cache.answers[i] = static_cast<int32_t>(use.slot());
    const int64_t first = use.slot() >= 0 ? 0 : RowCacheView::kSpread;
    atomic_add(cache.counts + first + i % RowCacheView::kSpread, 1);
  }
};

// A thread per wanted row that has no slot looks for one: that of the row of its set which counts least, if it counts
// for less, and was not used in this gather.
struct TakeSlots {
  WantedRows wanted;

  GLD_HOST_DEVICE int64_t count() const { return wanted.num_wanted; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    const RowCacheView& cache = wanted.cache;
    const int64_t row = cache.answers[i] == RowCacheView::kMissed ? wanted.cached_row(i) : -1;
    if (row < 0) return;
    const RowUse use{atomic_read(cache.uses + row)};
    // Another thread of the same row looks for a slot, or has found one.
    if (use.slot() >= 0 || atomic_claim(cache.uses + row, use.word, use.taken().word) != use.word) return;
    const int64_t slot = take(row, use.count_at(cache.gather));
    atomic_write(cache.uses + row, use.in_slot(slot).word);
    if (slot >= 0) cache.answers[i] = RowCacheView::filled_by_it(slot);
  }

 private:
  struct Least {
    int64_t slot;
    uint64_t row;
    int64_t count;
  };

  // A slot for a row that counts for so much; -1 where all of its set count for as much, or are in use. Each time that
  // another thread is faster a slot of the set is in use, so that there are no more rounds than slots.
  GLD_HOST_DEVICE int64_t take(int64_t row, int64_t row_count) const {
    const RowCacheView& cache = wanted.cache;
    while (true) {
      const Least least = find_least(cache.first_slot(row), row_count);
      if (least.slot < 0) return -1;
      if (atomic_claim(cache.slot_rows + least.slot, least.row, static_cast<uint64_t>(row)) != least.row) continue;
      if (least.row != RowCacheView::kEmpty) {  // whose word nobody else changes: no thread wants it
        const RowUse lost{atomic_read(cache.uses + least.row)};
        atomic_write(cache.uses + least.row, lost.in_slot(-1).word);
      }
      return least.slot;
    }
  }

  GLD_HOST_DEVICE Least find_least(int64_t first, int64_t below) const {
    const RowCacheView& cache = wanted.cache;
    Least least{-1, RowCacheView::kEmpty, below};
    for (int64_t slot = first; slot < first + cache.num_ways(); ++slot) {
      const uint64_t row = atomic_read(cache.slot_rows + slot);
      if (row == RowCacheView::kEmpty) return {slot, row, -1};
      const RowUse use{atomic_read(cache.uses + row)};
      const int64_t count = use.count_at(cache.gather);
      if (use.last_gather() != cache.gather && count < least.count) least = {slot, row, count};
    }
    return least;
  }
};

template <typename Executor>
void run_cache(Executor& executor, const WantedRows& wanted) {
  if (wanted.cache.rows == nullptr) return;
  executor.for_each(wanted.num_wanted, CountUses{wanted});
  executor.for_each(wanted.num_wanted, TakeSlots{wanted});
}

}  // namespace gld

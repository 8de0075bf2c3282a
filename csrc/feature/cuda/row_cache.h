// A cache of rows in the memory of a GPU, which learns from what is gathered which rows to keep; as kernels read it.
//
// Each row of the cached tensor has a word: how often it was used, older uses counting less, and its slot, if it has
// one (Lee et al.: "LRFU: a spectrum of policies that subsumes the least recently used and least frequently used
// policies", IEEE Transactions on Computers 2001). Slots form sets; a row may lie in any slot of one set. It takes the
// slot of the row there that counts least, where that counts for less than itself: rows that come once, of which
// batches are full, replace nothing (Einziger, Friedman, Manes: "TinyLFU: a highly efficient cache admission policy",
// ACM Transactions on Storage 2017; here all rows are counted, so that no sketch is needed).
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "common/rng.h"

namespace gld {

// The word of a row.
struct RowUse {
  static constexpr int64_t kHalfLife = 64;  // gathers until a use counts half
  static constexpr uint32_t kOneUse = 16, kMostUses = 0xFFFF, kTaken = 0xFFFFFFFF;

  uint64_t word;

  // Gathers are numbered modulo 2^16. A row that was last used a whole turn ago counts as used just now, which may only
  // keep it, or leave out a use, for one gather.
  GLD_HOST_DEVICE uint16_t last_gather() const { return static_cast<uint16_t>(word); }
  GLD_HOST_DEVICE uint32_t count_at(uint16_t gather) const {
    const int64_t halvings = static_cast<uint16_t>(gather - last_gather()) / kHalfLife;
    return halvings > 15 ? 0 : (static_cast<uint32_t>(word >> 16) & 0xFFFF) >> halvings;
  }
  // -1 where it has none; more than there are where a thread looks for one.
  GLD_HOST_DEVICE int64_t slot() const { return static_cast<int64_t>(word >> 32) - 1; }

  GLD_HOST_DEVICE RowUse used_in(uint16_t gather) const {
    const uint32_t count = count_at(gather) + kOneUse;
    const uint64_t kept = count < kMostUses ? count : kMostUses;
    return {(word >> 32 << 32) | kept << 16 | gather};
  }
  GLD_HOST_DEVICE RowUse in_slot(int64_t slot) const {
    return {static_cast<uint64_t>(slot + 1) << 32 | (word & 0xFFFFFFFF)};
  }
  GLD_HOST_DEVICE RowUse taken() const { return {uint64_t{kTaken} << 32 | (word & 0xFFFFFFFF)}; }
};

// By value. `rows` is null where there is no cache.
struct RowCacheView {
  static constexpr int64_t kWays = 16;    // slots of a set
  static constexpr int64_t kSpread = 64;  // words of one number, so that threads do not all add to the same
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static constexpr int32_t kMissed = -1;

  char* rows;           // [num_slots] of row_bytes each
  uint64_t* uses;       // [num_rows], zeros at first
  uint64_t* slot_rows;  // [num_slots], the row in each; kEmpty at first
  uint64_t* counts;     // [2 * kSpread], rows that were found, and behind them those that were not
  int32_t* answers;     // [num_wanted], of this gather: the slot that has a row, kMissed, or the slot that takes it
  int64_t num_slots, row_bytes;
  int64_t first_row;  // rows of the store from here on are cached; uses[0] is of this one
  uint16_t gather;    // number of this gather

  GLD_HOST_DEVICE char* address(int64_t slot) const { return rows + slot * row_bytes; }
  static GLD_HOST_DEVICE int32_t filled_by_it(int64_t slot) { return static_cast<int32_t>(kMissed - 1 - slot); }
  // Null where no slot takes the row.
  GLD_HOST_DEVICE char* slot_to_fill(int32_t answer) const {
    return answer < kMissed ? address(kMissed - 1 - static_cast<int64_t>(answer)) : nullptr;
  }

  GLD_HOST_DEVICE int64_t num_ways() const { return num_slots < kWays ? num_slots : kWays; }
  // The first slot of the set of a row.
  GLD_HOST_DEVICE int64_t first_slot(int64_t row) const {
    const int64_t ways = num_ways(), num_sets = num_slots / ways;
    return ways *
           static_cast<int64_t>(multiply_high(mix64(static_cast<uint64_t>(row)), static_cast<uint64_t>(num_sets)));
  }
};

}  // namespace gld

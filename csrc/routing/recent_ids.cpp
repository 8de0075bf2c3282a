#include "routing/recent_ids.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/error.h"
#include "common/rng.h"

namespace gld {
namespace {

constexpr int64_t kOneOf = 8;      // ids of which one gets a place once all blocks are full, at least
constexpr int kSlotBits = 31;      // all but the sign
constexpr int64_t kHashedIds = 8;  // ids for each slot, beyond which a table of all of them is the larger one

// Bits of a slot that are left for the row, where others say which of so many blocks it is in.
int row_bits(size_t num_blocks) {
  int bits = kSlotBits;
  while (num_blocks > size_t{1} << (kSlotBits - bits)) --bits;
  return bits;
}

}  // namespace

RecentIds::RecentIds(int64_t num_ids, int64_t block_rows, int num_blocks)
    : num_ids_(num_ids), block_rows_(block_rows), row_bits_(num_blocks < 1 ? 0 : row_bits(num_blocks)) {
  if (num_ids < 0) throw InvalidArgument(message("num_ids: expected at least 0, got ", num_ids));
  if (block_rows < 1) throw InvalidArgument(message("block_rows: expected at least 1, got ", block_rows));
  if (num_blocks < 1 || block_rows > row_mask())
    throw InvalidArgument(message("num_blocks: expected at least 1, of at most ", row_mask(), " rows each, got ",
                                  num_blocks, " of ", block_rows));
  is_dense_ = num_ids <= kHashedIds * block_rows * num_blocks;
  if (is_dense_) dense_.assign(static_cast<size_t>(num_ids), -1);
  blocks_.resize(static_cast<size_t>(num_blocks));
}

void RecentIds::find(const int64_t* ids, int64_t count, int64_t* slots) const {
  for (int64_t i = 0; i < count; ++i) prefetch(ids[i]);
  for (int64_t i = 0; i < count; ++i) slots[i] = slot_of(ids[i]);
}

void RecentIds::prefetch(int64_t id) const {
  if (is_dense_)
    __builtin_prefetch(&dense_[static_cast<size_t>(id)]);
  else
    hashed_.prefetch(id);
}

void RecentIds::set_slot(int64_t id, int32_t slot) {
  if (is_dense_)
    dense_[static_cast<size_t>(id)] = slot;
  else
    hashed_.insert(id, slot);
}

bool RecentIds::add_fixed(const std::vector<Fixed>& fixed, int32_t block_owner) {
  if (has_fixed() || round_ > 0) throw InvalidArgument("add_fixed: expected a table that has no places yet");
  const int bits = row_bits(blocks_.size() + fixed.size());
  int64_t most_rows = block_rows_;
  for (const Fixed& each : fixed) most_rows = std::max(most_rows, each.num_rows);
  if (!is_dense_ || most_rows >> bits > 0) return false;
  row_bits_ = bits;
  owners_.assign(size_t{2} << (kSlotBits - bits), -1);
  for (size_t block = 0; block < blocks_.size(); ++block) owners_[block] = block_owner + static_cast<int32_t>(block);
  for (size_t i = 0; i < fixed.size(); ++i) owners_[blocks_.size() + i] = fixed[i].owner;
  return true;
}

void RecentIds::fix(size_t which, int64_t id, int64_t row) noexcept {
  if (id < 0 || id >= num_ids_) return;
  dense_[static_cast<size_t>(id)] =
      static_cast<int32_t>((static_cast<int64_t>(blocks_.size() + which) << row_bits_) + row);
}

void RecentIds::locate(const int64_t* ids, int64_t count, int32_t* owners, int64_t* rows) const {
  const auto mask = static_cast<uint32_t>(row_mask());
  const int32_t* const owner_of = owners_.data();
  for (int64_t i = 0; i < count; ++i) prefetch(ids[i]);
  for (int64_t i = 0; i < count; ++i) {
    const auto slot = static_cast<uint32_t>(dense_[static_cast<size_t>(ids[i])]);
    owners[i] = owner_of[slot >> row_bits_];
    rows[i] = slot & mask;
  }
}

void RecentIds::forget() noexcept {
  for (std::vector<int64_t>& block : blocks_) drop(block);
  last_ = 0;
  is_full_ = false;
}

void RecentIds::drop(std::vector<int64_t>& block) noexcept {
  for (const int64_t id : block) {
    if (is_dense_)
      dense_[static_cast<size_t>(id)] = -1;
    else
      hashed_.erase(id);
  }
  block.clear();
}

std::vector<RecentIds::Run> RecentIds::keep(const Tensor& ids) {
  check_int64_vector(ids, ids.numel(), "ids");
  const int64_t* const given = ids.as<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i)
    if (given[i] < 0 || given[i] >= num_ids_)
      throw InvalidArgument(message("ids[", i, "]=", given[i], ": expected 0 <= id < ", num_ids_));
  std::vector<Run> runs;
  std::vector<int64_t> sources;
  const auto end_run = [&] {
    if (sources.empty()) return;
    runs.back().sources = empty({static_cast<int64_t>(sources.size())}, kInt64);
    std::copy(sources.begin(), sources.end(), runs.back().sources.as<int64_t>());
    sources.clear();
  };
  int64_t room = block_rows_ * num_blocks();
  // No more than fill a block, or else what is kept would be others each time.
  const int64_t one_of = is_full_ ? std::max(kOneOf, ids.numel() / block_rows_) : 1;
  const uint64_t key = mix64(++round_), drawn = std::numeric_limits<uint64_t>::max() / static_cast<uint64_t>(one_of);
  for (int64_t i = 0; i < ids.numel() && room > 0; ++i) {
    if (one_of > 1 && absorb(key, static_cast<uint64_t>(given[i])) > drawn) continue;
    if (slot_of(given[i]) >= 0) continue;
    if (static_cast<int64_t>(blocks_[last_].size()) == block_rows_) {
      end_run();
      last_ = (last_ + 1) % blocks_.size();
      is_full_ |= last_ == 0;
      drop(blocks_[last_]);
    }
    std::vector<int64_t>& block = blocks_[last_];
    const auto row = static_cast<int64_t>(block.size());
    if (sources.empty()) runs.push_back({static_cast<int64_t>(last_), row, row == 0, {}});
    block.push_back(given[i]);  // first, so that forget() finds whatever has a slot
    set_slot(given[i], static_cast<int32_t>((static_cast<int64_t>(last_) << row_bits_) + row));
    sources.push_back(i);
    --room;
  }
  end_run();
  return runs;
}

}  // namespace gld

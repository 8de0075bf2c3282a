// From global ids to positions in a list: built once, asked from many threads.
#pragma once
#include <cstdint>
#include <limits>

#include "common/error.h"
#include "common/rng.h"
#include "common/tensor.h"

namespace gld {

// Whether a stored id may be equal to `id`: a graph may be said to have more nodes than its stored ids can name.
template <typename Key>
bool fits(int64_t id) {
  return id <= std::numeric_limits<Key>::max();
}

// Open addressing with linear probing, at most half full, in pooled memory. `Key` is the integer type that ids are
// stored in: 32 bits make a slot half as large, and that is what a miss of the cache costs.
template <typename Key>
class MemberTable {
 public:
  // Of ids that occur several times in members[0, count), the first stands for all. Ids must not be negative.
  template <typename Id>
  MemberTable(const Id* members, int64_t count) {
    if (count >= int64_t{kNone})
      throw InvalidArgument(message("members: expected fewer than ", kNone, " ids, got ", count));
    size_t capacity = 16;
    while (capacity < 2 * static_cast<size_t>(count)) capacity *= 2;
    mask_ = capacity - 1;
    memory_ = empty({static_cast<int64_t>(capacity * sizeof(Slot))}, kUInt8);
    slots_ = memory_.as<Slot>();
    for (size_t i = 0; i < capacity; ++i) slots_[i] = {0, kNone};
    for (int64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) __builtin_prefetch(slots_ + home(static_cast<Key>(members[i + kAhead])), 1);
      if (fits<Key>(members[i])) insert(static_cast<Key>(members[i]), static_cast<uint32_t>(i));
    }
  }

  void prefetch(Key id) const { __builtin_prefetch(slots_ + home(id)); }

  // The position of `id`, or -1.
  int64_t find(Key id) const {
    for (size_t at = home(id);; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.position == kNone) return -1;
      if (slot.id == id) return slot.position;
    }
  }

  static constexpr int64_t kAhead = 24;

 private:
  struct Slot {
    Key id;
    uint32_t position;
  };
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  size_t home(Key id) const { return (static_cast<uint64_t>(id) * kGolden >> 20) & mask_; }

  void insert(Key id, uint32_t position) {
    size_t at = home(id);
    while (slots_[at].position != kNone && slots_[at].id != id) at = (at + 1) & mask_;
    if (slots_[at].position == kNone) slots_[at] = {id, position};
  }

  Tensor memory_;
  Slot* slots_;
  size_t mask_;
};

}  // namespace gld

// Which rows were answered lately, and where they are kept: a ring of blocks, of which the oldest is used again. And,
// by the same look-up, where rows lie that are always at hand.
#pragma once
#include <cstdint>
#include <vector>

#include "common/row_table.h"
#include "common/tensor.h"

namespace gld {

// Gives out the places and holds no rows; whoever does has a memory for each block, and another one once a block
// begins anew, as a lookup that is under way may still read what lay there. What a block holds is never overwritten.
// Ids are in [0, num_ids).
//
// First in, first out; once all blocks are full only one of a few ids, drawn at random, gets a place. What is asked for
// often has more draws, so that it stays in the greater number as if its uses were counted (Martina, Garetto and
// Leonardi, "A unified approach to the performance analysis of caching systems", INFOCOM 2014, q-LRU), and fewer rows
// are copied.
//
// find() may run in several threads at once, but not beside keep().
class RecentIds {
 public:
  // Blocks of so many rows each; at least one of each.
  RecentIds(int64_t num_ids, int64_t block_rows, int num_blocks);

  // slots[i]: where ids[i] is kept, -1 where it is not; see block_of(), row_in().
  void find(const int64_t* ids, int64_t count, int64_t* slots) const;

  // Some rows that go into one block, one behind the other.
  struct Run {
    int64_t block = 0, first = 0;  // their place
    bool is_begun = false;         // the block begins with them: what lay there before is kept no more
    Tensor sources;                // int64 [n], which of the ids they belong to
  };
  // Places for those of `ids` (int64 [n]) that have none and are drawn, as far as all blocks can hold them. Throws
  // InvalidArgument for an id outside [0, num_ids), and changes nothing then; std::bad_alloc, after which only
  // forget() may be called.
  std::vector<Run> keep(const Tensor& ids);
  // No id has a place any more, and all blocks begin anew. Takes no memory.
  void forget() noexcept;

  int block_of(int64_t slot) const { return static_cast<int>(slot >> row_bits_); }
  int64_t row_in(int64_t slot) const { return slot & row_mask(); }

  // Rows of somebody else, whose places never go.
  struct Fixed {
    int32_t owner;
    int64_t num_rows;
  };
  // Makes places for them. The blocks have `block_owner` and the owners that follow. False, with nothing changed, where
  // this is no table of all ids, or has too many rows in a block or of an owner. Throws InvalidArgument once it has
  // places.
  bool add_fixed(const std::vector<Fixed>& fixed, int32_t block_owner);
  // An id has a row of one of them, which is in [0, num_rows): it is found, and never kept. What is fixed later takes
  // precedence; an id outside [0, num_ids) is passed over.
  void fix(size_t which, int64_t id, int64_t row) noexcept;
  bool has_fixed() const { return !owners_.empty(); }
  // Where there are fixed ids: whose row an id has, -1 where it has no place, and which.
  void locate(const int64_t* ids, int64_t count, int32_t* owners, int64_t* rows) const;

  int64_t num_ids() const { return num_ids_; }
  int64_t block_rows() const { return block_rows_; }
  int num_blocks() const { return static_cast<int>(blocks_.size()); }

 private:
  int32_t slot_of(int64_t id) const {
    if (is_dense_) return dense_[static_cast<size_t>(id)];
    const int32_t* slot = hashed_.find(id);
    return slot == nullptr ? -1 : *slot;
  }
  int64_t row_mask() const { return (int64_t{1} << row_bits_) - 1; }
  void prefetch(int64_t id) const;
  void set_slot(int64_t id, int32_t slot);
  void drop(std::vector<int64_t>& block) noexcept;

  int64_t num_ids_, block_rows_;
  bool is_dense_;
  std::vector<int32_t> dense_;                // by id, its slot or -1
  int row_bits_;                              // of a slot; those above say which block it is, or which of the fixed
  std::vector<int32_t> owners_;               // by what those bits say, the sign among them
  RowTable<int32_t> hashed_;                  // the same where ids are many times the slots
  std::vector<std::vector<int64_t>> blocks_;  // the ids in each, in the order of their rows
  size_t last_ = 0;                           // the block that is being filled
  bool is_full_ = false;                      // all others are full
  uint64_t round_ = 0;                        // calls of keep()
};

}  // namespace gld

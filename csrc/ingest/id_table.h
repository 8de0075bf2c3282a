// Finds ids in a list of distinct ones, integers or texts.
#pragma once
#include <cstdint>
#include <string_view>

#include "common/rng.h"
#include "common/tensor.h"
#include "common/thread_pool.h"

namespace gld {

// Ids in a column: int64 [n], or texts as Arrow's large strings have them: offsets int64 [n + 1] into bytes uint8.
struct IdColumn {
  Tensor ids;             // undefined: texts
  Tensor offsets, bytes;  // undefined: integers

  bool is_text() const { return offsets.defined(); }
  int64_t size() const { return is_text() ? offsets.shape[0] - 1 : ids.shape[0]; }
  // Of all texts; -1 where the ids are integers.
  int64_t text_bytes() const {
    return is_text() ? offsets.as<const int64_t>()[size()] - offsets.as<const int64_t>()[0] : -1;
  }
  int64_t integer(int64_t i) const { return ids.as<const int64_t>()[i]; }
  std::string_view text(int64_t i) const {
    const int64_t* at = offsets.as<const int64_t>();
    return {bytes.as<const char>() + at[i], static_cast<size_t>(at[i + 1] - at[i])};
  }
};

// Checks dtypes and shapes, and that texts lie within their bytes. O(n) for texts.
void check_id_column(const IdColumn& column, const char* name);

// An open-addressing table of ids, in memory of its own with few pages: a look-up touches a slot and, of texts, one
// place more. About 24 bytes an integer, 17 and its bytes a text (4 more from 255 bytes on).
class IdTable {
 public:
  // Room for so many ids, fewer than 2^32, which `add` brings. `text_bytes`: of all texts at most; negative where the
  // ids are integers. Pages of it are touched when they are filled.
  IdTable(int64_t max_ids, int64_t text_bytes);

  // With these ids; they are read once here.
  explicit IdTable(const IdColumn& ids);

  // More ids, of the table's kind, distinct from all others: their positions follow those of the ids before them. Not
  // while others ask.
  void add(const IdColumn& ids);

  // For each of `asked`, of the same kind, its position in the list, or -1: int64 [n]. Any number of threads may ask.
  Tensor find(const IdColumn& asked, ThreadPool* pool) const;

  int64_t size() const { return size_; }

 private:
  void check_kind(const IdColumn& column, const char* name) const;
  void add_integers(const IdColumn& ids);
  void add_texts(const IdColumn& ids);
  void find_integers(const IdColumn& asked, int64_t begin, int64_t end, int64_t* out) const;
  void find_texts(const IdColumn& asked, int64_t begin, int64_t end, int64_t* out) const;
  uint64_t slot_of(uint64_t hash) const { return multiply_high(hash, num_slots_); }
  uint64_t next(uint64_t slot) const { return slot + 1 == num_slots_ ? 0 : slot + 1; }

  // Of this table's hashes, drawn: what is found does not depend on it, but nobody can make ids that all share a slot.
  uint64_t salt_;
  bool is_text_;
  int64_t max_size_;
  int64_t size_ = 0;
  uint64_t num_slots_;
  Tensor slots_;  // of integers: id and position, -1 where empty; of texts: see id_table.cpp
  Tensor texts_;  // of each text: position uint32, length, bytes
  uint64_t texts_end_ = 0;
};

}  // namespace gld

// A hash table by row numbers: open addressing in one array, erased without marks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gld {

// `Value` is small and trivially copied. Pointers to values are good until the next insert() or erase(). Linear
// probing; an erased place is filled by moving later entries of its run back (Knuth, The Art of Computer Programming
// 3, 6.4, algorithm R).
template <typename Value>
class RowTable {
 public:
  explicit RowTable(size_t expected = 0) { resize(expected); }

  // Bytes of the table for so many rows.
  static size_t bytes_for(size_t rows) { return places_for(rows) * sizeof(Entry); }
  size_t size() const { return size_; }

  const Value* find(int64_t row) const {
    for (size_t at = home(row);; at = next(at)) {
      if (entries_[at].row == row) return &entries_[at].value;
      if (entries_[at].row == kNone) return nullptr;
    }
  }
  // The row will be looked for soon.
  void prefetch(int64_t row) const { __builtin_prefetch(&entries_[home(row)]); }
  Value* find(int64_t row) { return const_cast<Value*>(std::as_const(*this).find(row)); }
  // The value of a row, and whether it is new. Rows are at least 0.
  std::pair<Value*, bool> insert(int64_t row, const Value& value) {
    if ((size_ + 1) * 4 > entries_.size() * 3) resize(entries_.size());
    size_t at = home(row);
    for (; entries_[at].row != kNone; at = next(at))
      if (entries_[at].row == row) return {&entries_[at].value, false};
    entries_[at] = {row, value};
    ++size_;
    return {&entries_[at].value, true};
  }
  void erase(int64_t row) {
    size_t hole = home(row);
    for (; entries_[hole].row != row; hole = next(hole))
      if (entries_[hole].row == kNone) return;
    --size_;
    for (size_t at = next(hole); entries_[at].row != kNone; at = next(at)) {
      // An entry may move back to the hole unless that lies before its home.
      const size_t distance = (at - home(entries_[at].row)) & mask_;
      if (distance < ((at - hole) & mask_)) continue;
      entries_[hole] = entries_[at];
      hole = at;
    }
    entries_[hole].row = kNone;
  }

 private:
  static constexpr int64_t kNone = -1;
  struct Entry {
    int64_t row = kNone;
    Value value{};
  };

  // A power of two, of which at most three quarters are taken.
  static size_t places_for(size_t rows) {
    size_t places = 16;
    while (places * 3 < (rows + 1) * 4) places *= 2;
    return places;
  }
  void resize(size_t rows) {
    std::vector<Entry> before = std::exchange(entries_, std::vector<Entry>(places_for(rows)));
    mask_ = entries_.size() - 1;
    shift_ = 64;
    for (size_t places = entries_.size(); places > 1; places /= 2) --shift_;
    size_ = 0;
    for (const Entry& entry : before)
      if (entry.row != kNone) insert(entry.row, entry.value);
  }
  size_t home(int64_t row) const { return static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15u >> shift_; }
  size_t next(size_t at) const { return (at + 1) & mask_; }

  std::vector<Entry> entries_;
  size_t mask_ = 0, size_ = 0;
  int shift_ = 60;
};

}  // namespace gld

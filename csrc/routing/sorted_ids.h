// Where ids stand in a list in order: the rows of edge features that lie with their edges, and copies of rows.
#pragma once
#include <memory>
#include <type_traits>
#include <variant>
#include <vector>

#include "common/tensor.h"
#include "common/thread_pool.h"

namespace gld {

// The index of `SortedIds`, over ids of one type. Position i starts stretch k for k = stretch(keys[i]) and those before
// it that have no ids.
template <typename Key>
struct IdIndex {
  const Key* keys = nullptr;
  int64_t size = 0, first = 0, last = -1;
  int shift = 0;
  std::vector<std::make_unsigned_t<Key>> starts;

  void build(const Tensor& sorted, ThreadPool* pool);
  void find(const int64_t* ids, int64_t count, int64_t* rows) const;
  int64_t stretch(int64_t id) const {
    return static_cast<int64_t>((static_cast<uint64_t>(id) - static_cast<uint64_t>(first)) >> shift);
  }
};

// A bit for each id of [first, last] that says whether it is in the list, by 64, each with how many of the list are
// before it: a look-up reads one line, and nothing of the list.
struct IdBits {
  struct Word {
    uint64_t bits;
    int64_t before;
  };
  int64_t first = 0, span = 0;
  std::vector<Word> words;

  // Of a list that ascends.
  template <typename Key>
  void build(const Key* keys, int64_t size);
  void find(const int64_t* ids, int64_t count, int64_t* rows) const;
};

// A list of ids with an index over it: for each of some equal stretches of [least id, greatest id], where its ids
// start. The stretches are as many as make the index an eighth of the list, so that a look-up reads one entry of the
// index and a line or two of the list where ids are spread evenly; where they are not, it halves the stretch first.
class SortedIds {
 public:
  // How far the list of `with_bits` may spread, at most so many ids for each of its own: its index then has no more
  // than 8 bytes an id.
  static constexpr int64_t kMostSpread = 32;

  // `sorted`: int32 or int64, read once here. Raises PartitionFormat unless it ascends, and has nothing twice. With
  // `with_bits` the index is IdBits where ids lie near enough, which is larger, and finds in less time.
  SortedIds(Tensor sorted, ThreadPool* pool, bool with_bits = false);

  // rows[i]: the position of ids[i] in the list, -1 where it is not there.
  void find(const int64_t* ids, int64_t count, int64_t* rows) const;

  // The same of a vector of int32 or int64, as int64 [n]. `pool` may be null, and never changes a result.
  Tensor find(const Tensor& ids, ThreadPool* pool) const;

  int64_t size() const { return sorted_.numel(); }
  const Tensor& ids() const { return sorted_; }

  // Bytes of the index.
  int64_t index_bytes() const;

 private:
  Tensor sorted_;
  std::variant<IdIndex<int32_t>, IdIndex<int64_t>, IdBits> index_;
};

}  // namespace gld

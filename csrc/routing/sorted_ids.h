// Where ids stand in a list in order: the rows of edge features that lie with their edges.
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

// A list of ids with an index over it: for each of some equal stretches of [least id, greatest id], where its ids
// start. The stretches are as many as make the index an eighth of the list, so that a look-up reads one entry of the
// index and a line or two of the list where ids are spread evenly; where they are not, it halves the stretch first.
class SortedIds {
 public:
  // `sorted`: int32 or int64, read once here. Raises PartitionFormat unless it ascends, and has nothing twice.
  SortedIds(Tensor sorted, ThreadPool* pool);

  // rows[i]: the position of ids[i] in the list, -1 where it is not there.
  void find(const int64_t* ids, int64_t count, int64_t* rows) const;

  // The same of a vector of int32 or int64, as int64 [n]. `pool` may be null, and never changes a result.
  Tensor find(const Tensor& ids, ThreadPool* pool) const;

  int64_t size() const { return sorted_.numel(); }

  // Bytes of the index.
  int64_t index_bytes() const;

 private:
  Tensor sorted_;
  std::variant<IdIndex<int32_t>, IdIndex<int64_t>> index_;
};

}  // namespace gld

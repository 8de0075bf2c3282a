// Splitting a frontier among the partitions that own it, and putting their answers back together.
//
// Index vectors are int32 or int64, ids are global. `pool` may be null, and never changes a result.
#pragma once
#include <cstdint>
#include <vector>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "routing/partition_book.h"
#include "routing/recent_ids.h"
#include "routing/sorted_ids.h"

namespace gld {

// Ids in buckets, one for each owner in ascending order; within a bucket they keep the order in which they came.
// Bucket p is [offsets[p], offsets[p + 1]) of the three vectors.
struct Split {
  Tensor ids;        // int64 [n], global; of a lean split int32 where the book has so few
  Tensor rows;       // int64 [n], local rows at the owner
  Tensor positions;  // int64 [n], where each id stood in the input; undefined in a lean split
  Tensor offsets;    // int64 [num_partitions + 1]
  Tensor owners;     // int32 [n], of each id of the input
};

// Raises UnknownId for an id outside the book. A lean split has less to write.
Split split_by_owner(const Tensor& ids, const PartitionBook& book, ThreadPool* pool, bool is_lean = false);

// Copies of rows of partitions that would have to be asked: those of a list, and those that were answered lately.
struct KeptCopies {
  const SortedIds* ids = nullptr;  // null: no list
  Tensor rows;  // int64, the row of each id of the list, in its order; undefined: the rows are in that order
  const RecentIds* recent = nullptr;  // null: none
};

// Where rows of a lookup will be found: at their owners where these are at hand, else in what their owners answer,
// unless there are copies.
struct LocatedRows {
  Tensor owners;     // int32 [n], of each id in the order in which they came; num_partitions for a copy of the list,
                     // above that 1 + the block of a recent one
  Tensor rows;       // int64 [n], the row at an owner at hand, or of a copy; the place in the answer of one asked
  Tensor ids;        // int64 [m], those to be asked for, in buckets by owner as in Split
  Tensor positions;  // int64 [m], where each of them stood in the input
  Tensor offsets;    // int64 [num_partitions + 1], bounds of the buckets; those of owners at hand are empty
  int64_t num_copied = 0, num_recent = 0;  // ids of which there were copies, of either kind
};

// `is_asked` has one entry for each partition. Raises UnknownId for an id outside the book, and InvalidArgument for
// recent ones of another number of ids.
LocatedRows locate_rows(const Tensor& ids, const PartitionBook& book, const std::vector<bool>& is_asked,
                        ThreadPool* pool, const KeptCopies& copies = {});

// The same of ids whose owners (int32 [n]) are known: `at_hand` has the ids of each partition, in the order of its
// rows, and null for those that are asked. Raises UnknownId for an id that its owner has not.
LocatedRows locate_owned(const Tensor& owners, const Tensor& ids, const std::vector<const SortedIds*>& at_hand,
                         ThreadPool* pool, const KeptCopies& copies = {});

// What one partition answered about its bucket: counts[i] neighbors for the i-th id of the bucket, one after another.
// A partition that was not asked may leave all three undefined.
struct NeighborPart {
  Tensor counts;     // uint8, int32 or int64 [bucket size]
  Tensor neighbors;  // int32 or int64 [sum of counts]
  Tensor edge_ids;   // int32 or int64 [sum of counts], or undefined
};

// The answers in the order of the original ids.
struct Neighbors {
  Tensor counts;     // int64 [n]
  Tensor neighbors;  // [sum of counts]; int32 if every answer with neighbors is int32, else int64
  Tensor edge_ids;   // likewise; undefined if no part has edge ids
};

// `positions` and `offsets` as in Split; parts in the order of the owners, with at most `max_count` neighbors for an id
// (-1: any number). Raises InvalidArgument, naming the partition, if a count is negative or too large or the lengths do
// not add up, or if one part lacks the edge ids that another has.
Neighbors stitch_neighbors(const Tensor& positions, const Tensor& offsets, const std::vector<NeighborPart>& parts,
                           ThreadPool* pool, int64_t max_count = -1);

// The answers read id by id in the order of the ids that were split, for who writes them somewhere in one pass.
// Arguments and errors as of stitch_neighbors(); the split, which may be lean, must live as long.
class AnswerReader {
 public:
  AnswerReader(const Split& split, const std::vector<NeighborPart>& parts, int64_t max_count);

  int64_t total() const { return total_; }  // neighbors of all ids
  bool has_edge_ids() const { return has_edge_ids_; }
  DType neighbor_dtype() const { return neighbor_dtype_; }  // of all parts
  template <typename Id>
  const Id* neighbors(int part) const {
    return parts_[static_cast<size_t>(part)].neighbors.as<Id>();
  }
  const int64_t* edge_ids(int part) const { return parts_[static_cast<size_t>(part)].edge_ids.as<int64_t>(); }

  int64_t num_neighbors(int part) const { return parts_[static_cast<size_t>(part)].neighbors.numel(); }

  // What comes for the next id: its neighbors and edge ids are entries [first, first + count) of that part's.
  struct Answer {
    int part;
    int64_t first, count;
  };
  Answer next() {
    const int32_t owner = split_.owners.as<int32_t>()[next_++];
    Place& place = places_[static_cast<size_t>(owner)];
    const int64_t count = *place.count++, first = place.first;
    place.first += count;
    return {owner, first, count};
  }

 private:
  struct Place {  // what comes next in a part
    const int64_t* count;
    int64_t first;
  };
  const Split& split_;
  bool has_edge_ids_ = false;
  DType neighbor_dtype_;
  std::vector<NeighborPart> parts_;  // of one dtype each; counts and edge ids are int64
  std::vector<Place> places_;
  int64_t total_ = 0, next_ = 0;
};

// Copies rows[i] to out[positions[i]]. `out` and `rows` have one dtype, of any kind, and equal shapes but for the
// first extent. Positions must be distinct. One outside `out` raises UnknownId, after some rows may have been copied.
void scatter_rows(const Tensor& out, const Tensor& positions, const Tensor& rows, ThreadPool* pool);

}  // namespace gld

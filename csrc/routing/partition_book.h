// Which partition owns an id, and where it stands among that partition's rows.
//
// Ids are global, in [0, num_ids). Every id has one owner (int32, in [0, num_partitions)) and one local row (int64, in
// [0, size(owner))); local rows of a partition are dense. Books are immutable: any number of threads may ask at once.
// Index vectors are int32 or int64. `pool` may be null, and never changes a result.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/permutation.h"
#include "common/tensor.h"
#include "common/thread_pool.h"

namespace gld {

class PartitionBook {
 public:
  // Contiguous ranges: partition p owns [bounds[p], bounds[p + 1]), its rows in the order of the ids. `bounds` holds
  // num_partitions + 1 ascending numbers from 0 on; equal neighbors make an empty partition.
  static std::shared_ptr<const PartitionBook> range(const Tensor& bounds);
  // Near-equal ranges of a keyed bijection of the ids (see permutation.h): a random partition without a table. The
  // first num_ids % num_partitions partitions own one id more than the others.
  static std::shared_ptr<const PartitionBook> permuted(int64_t num_ids, int num_partitions, uint64_t key);
  // Any assignment. `owners` uint8, uint16 or int32 [num_ids]; `rows` int32 or int64 [num_ids]. Both are borrowed for
  // the life of the book, and read once in full to check that the rows of each partition are dense and distinct.
  static std::shared_ptr<const PartitionBook> table(const Tensor& owners, const Tensor& rows, int num_partitions);
  // Zones of an order: zone z has the ids whose places lie in [bounds[z], bounds[z + 1]), and partition owners[z] has
  // the zone; its rows are in the order of the places. `place` int32 or int64 [num_ids], a permutation, is borrowed for
  // the life of the book and read once in full to check it; `bounds` int32 or int64 [num_zones + 1], ascending from 0
  // to num_ids; `owners` int32 or int64 [num_zones].
  static std::shared_ptr<const PartitionBook> zones(const Tensor& place, const Tensor& bounds, const Tensor& owners,
                                                    int num_partitions);

  virtual ~PartitionBook() = default;

  virtual const char* kind() const = 0;
  int64_t num_ids() const { return offsets_.back(); }
  int num_partitions() const { return static_cast<int>(offsets_.size()) - 1; }
  // Number of ids that `partition` owns.
  int64_t size(int partition) const;

  // Owner and local row of every id; either output may be null. Raises UnknownId for an id outside [0, num_ids).
  void locate(const Tensor& ids, int32_t* owners, int64_t* rows, ThreadPool* pool) const;
  // The same for a plain range of ids, in the caller's thread.
  template <typename T>
  void locate(const T* ids, int64_t count, int32_t* owners, int64_t* rows, int64_t first_position) const;
  // Local rows of ids that all belong to `partition`; another's id raises UnknownId and names its owner.
  void local_rows(const Tensor& ids, int partition, int64_t* rows, ThreadPool* pool) const;
  // The ids of `partition` in the order of its local rows, int64 [size(partition)].
  Tensor global_ids(int partition, ThreadPool* pool) const;

 protected:
  // `offsets`: how many ids the partitions before each own, with the total at the end.
  explicit PartitionBook(std::vector<int64_t> offsets) : offsets_(std::move(offsets)) {}
  // Up to kBlock ids, already known to lie in [0, num_ids).
  virtual void locate_block(const int64_t* ids, int64_t count, int32_t* owners, int64_t* rows) const = 0;
  virtual void fill_global_ids(int partition, int64_t* out, ThreadPool* pool) const = 0;
  void check_partition(int partition) const;

  static constexpr int64_t kBlock = 1024;
  std::vector<int64_t> offsets_;
};

// The places of `indices` (int32 or int64 [count], each in [0, n)) under Permutation(n, key), int64 [count].
Tensor permute_indices(const Tensor& indices, int64_t n, uint64_t key, bool inverse, ThreadPool* pool);

}  // namespace gld

// Records of nodes' rows on their way to the partitions that own them: files that each fit into memory.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "routing/partition_book.h"

namespace gld {

// Distributes records over buckets. A bucket is a range of 2^shift local rows of one partition; buckets are numbered
// through the partitions, those of partition p from first_bucket(p) on. Its file, folder/<number>, holds records in the
// order in which they came: the row, counted from the bucket's first (uint32), then one item of each column, without
// padding. A bucket without records has no file.
//
// Memory: `buffer_bytes` a bucket, and 12 bytes for each record of the largest put(). No file stays open.
class RowBuckets {
 public:
  // `item_sizes`: bytes of an item of each column.
  RowBuckets(std::shared_ptr<const PartitionBook> book, std::string folder, int shift, std::vector<int64_t> item_sizes,
             int64_t buffer_bytes);

  // ids int32 or int64 [n] say whose rows the records are; one outside the book raises UnknownId with its position, and
  // nothing is put then. columns[i] holds n items. Throws std::system_error where a file cannot be written.
  void put(const Tensor& ids, const std::vector<Tensor>& columns, ThreadPool* pool);

  // Writes what is still in memory. Whoever forgets it, loses that.
  void flush();

  int64_t num_buckets() const { return static_cast<int64_t>(buffers_.size()); }
  int64_t first_bucket(int partition) const { return first_bucket_.at(partition); }
  int64_t record_bytes() const { return record_bytes_; }
  // Number of records of each bucket so far.
  const std::vector<int64_t>& counts() const { return counts_; }

 private:
  struct Buffer {
    std::unique_ptr<char[]> bytes;
    int64_t used = 0;
  };
  void copy_columns(const std::vector<Tensor>& columns, int64_t first, int64_t count) const;
  void write_out(int64_t bucket);

  std::shared_ptr<const PartitionBook> book_;
  std::string folder_;
  int shift_;
  std::vector<int64_t> item_sizes_, first_bucket_, counts_;
  int64_t record_bytes_, capacity_;
  std::vector<Buffer> buffers_;
  std::vector<int32_t> owners_;  // of the records of one put()
  std::vector<int64_t> rows_;
  std::vector<char*> targets_;  // where the columns of those go that have a place already
};

}  // namespace gld

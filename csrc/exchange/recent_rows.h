// Rows that other partitions answered lately, of stores whose rows are looked up by the same ids.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "feature/gather.h"
#include "routing/partition_book.h"
#include "routing/recent_ids.h"
#include "routing/sorted_ids.h"

namespace gld::exchange {

// All methods may be called from any thread.
class RecentRows {
 public:
  // By store and block, the rows; null where none was kept. They stay where they are for whoever holds this.
  using Blocks = std::vector<std::vector<std::shared_ptr<const RowStore>>>;

  // In so many blocks, each of so many rows of each store; at least one of each.
  RecentRows(size_t num_stores, int64_t num_ids, int64_t block_rows, int num_blocks);

  // What is always at hand of these stores.
  struct AtHand {
    std::shared_ptr<const PartitionBook> book;
    std::vector<bool> is_asked;               // by partition; the others are at hand
    std::shared_ptr<const SortedIds> copied;  // of which there are copies; null: of none
    Tensor copy_rows;                         // int64, the row of each of them; undefined: rows are in their order
  };
  // Look-ups find that by the same table, where it has every id: one look-up for each id, and the book is read for
  // those alone that have to be asked for. Copies of ids that the book has not are not looked up by anybody. Throws
  // InvalidArgument where the book has another number of ids, or rows of copies are not among them, and once something
  // was kept or found so; nothing has changed then.
  void find_also(AtHand at_hand);
  // Null where look-ups do not; of the rows of copies, only where they lay.
  const AtHand* at_hand() const { return at_hand_.has_value() ? &*at_hand_ : nullptr; }

  size_t num_stores() const { return blocks_.size(); }
  int64_t block_rows() const { return ids_.block_rows(); }

  // Which ids are kept, and where; neither changes while this lives.
  class Reading {
   public:
    explicit Reading(const RecentRows& rows) : lock_(rows.mutex_), rows_(rows) {}
    const RecentIds& ids() const { return rows_.ids_; }
    const Blocks& blocks() const { return rows_.blocks_; }

   private:
    const std::shared_lock<std::shared_mutex> lock_;
    const RecentRows& rows_;
  };

  // Keeps rows of `ids` (int64 [n], each once) as far as there are places for them (recent_ids.h): the i-th row of each
  // of `answers`, one for each store. Where there is no memory for them, nothing is kept any more. Throws
  // InvalidArgument where rows are not like those that were kept before, which are forgotten then.
  void keep(const Tensor& ids, const std::vector<std::shared_ptr<const RowStore>>& answers, ThreadPool& pool);
  // Keeps nothing of what it has. Takes no memory.
  void forget();

 private:
  void write(const RecentIds::Run& run, const std::vector<std::shared_ptr<const RowStore>>& answers, ThreadPool& pool);
  void forget_all() noexcept;

  mutable std::shared_mutex mutex_;
  RecentIds ids_;
  Blocks blocks_;
  std::optional<AtHand> at_hand_;
};

}  // namespace gld::exchange

// Rows that some batches look up, of partitions at hand and of those that are asked: each row is read once from where
// it lies, and written once, where it is wanted.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "exchange/exchange.h"
#include "exchange/recent_rows.h"
#include "feature/gather.h"
#include "routing/partition_book.h"
#include "routing/sorted_ids.h"
#include "routing/split.h"

namespace gld::exchange {

// Stores whose rows are looked up by the same ids, so that they lie in the same places.
struct RowGroup {
  std::vector<std::string> stores;
  std::shared_ptr<const PartitionBook> book;  // null: whoever looks up knows the places
  std::shared_ptr<const SortedIds> copied;    // of which there are copies; null: of none
  Tensor copy_rows;                           // see KeptCopies
  std::shared_ptr<RecentRows> recent;         // null: none are kept
  int node_type = -1;                         // whose nodes' rows they are; -1: nobody asks
};

// What lookups begin with. Who asks for what else may change does not change one that has begun.
struct RowPlan {
  std::vector<RowGroup> groups;
  std::vector<bool> is_asked;  // by partition
  bool repeats = false;        // it pays to look for ids that a batch has more than once
};

// Throws InvalidArgument where a group has no stores, a book of other partitions, or recent rows of other stores.
void check_plan(const RowPlan& plan);

// One lookup, of some batches: what several have is asked for once. One thread at a time.
class RowLookup {
 public:
  // What a batch wants of a group.
  struct Wanted {
    Tensor ids;                         // int32 or int64 [n]; undefined: nothing, or what the places say
    std::optional<LocatedRows> places;  // where the group has no book
  };
  // Ids of which there were copies, which were kept of earlier answers, and which had to be asked for.
  struct Counts {
    int64_t copied = 0, recent = 0, asked = 0;
  };

  RowLookup(std::shared_ptr<const RowPlan> plan, std::shared_ptr<ThreadPool> pool);

  // Finds the rows, by batch and group; the queries to others, one for each partition. Once. Throws UnknownId.
  std::vector<Asked> begin(const std::vector<std::vector<Wanted>>& wanted);
  // The answer to the i-th of them. Throws rpc::ProtocolError where it has other rows than were asked for.
  void take(size_t i, const rpc::IncomingValue& answer);

  // Writes the rows of a store for a batch to `out` ([n, ...]), when all answers were taken. `held`: by partition at
  // hand its rows, null for those that are asked; then those of the copies, or null. Throws InvalidArgument where `out`
  // has another number of rows, or a partition answered rows of another dtype or shape, UnknownId where there is no
  // such row.
  void gather(size_t batch, size_t group, size_t store, const std::vector<std::shared_ptr<RowStore>>& held,
              const Tensor& out) const;
  // Keeps what was answered, where rows are kept. Throws InvalidArgument unless all answers were taken.
  void keep();

  size_t num_batches() const { return batches_.size(); }
  Counts counts(size_t batch, size_t group) const { return of(batch, group).counts; }
  // Owners and rows as in LocatedRows.
  const LocatedRows& located(size_t batch, size_t group) const { return of(batch, group).located; }

 private:
  struct Found {  // of a group, for a batch
    bool is_wanted = false;
    LocatedRows located;
    Counts counts;
  };
  struct Together {  // of a group, for all batches
    Tensor ids;      // int64 [m], those that are asked for, in buckets by owner
    Tensor offsets;  // int64 [num_partitions + 1], bounds of the buckets; undefined: nobody wants any
    std::vector<std::vector<std::shared_ptr<const RowStore>>> answers;  // [store][partition]
    RecentRows::Blocks kept;                                            // when the rows were found
    int64_t count(int partition) const {
      return offsets.as<int64_t>()[partition + 1] - offsets.as<int64_t>()[partition];
    }
    Tensor asked_of(int partition) const;
  };
  struct Sent {
    int partition;
    std::vector<size_t> groups;  // of which it was asked for rows
  };
  int num_partitions() const { return static_cast<int>(plan_->is_asked.size()); }
  const Found& of(size_t batch, size_t group) const;
  void locate(size_t group, const std::vector<std::vector<Wanted>>& wanted);
  void ask_together(size_t group);

  const std::shared_ptr<const RowPlan> plan_;
  const std::shared_ptr<ThreadPool> pool_;
  std::vector<std::vector<Found>> batches_;  // [batch][group]
  std::vector<Together> groups_;
  std::vector<Sent> sent_;
};

// A lookup by itself: of ids that somebody knows.
class RowsExchange : public Exchange {
 public:
  RowsExchange(const std::shared_ptr<const RowPlan>& plan, const std::vector<std::vector<RowLookup::Wanted>>& wanted,
               std::shared_ptr<ThreadPool> pool)
      : lookup_(std::make_shared<RowLookup>(plan, std::move(pool))), asked_(lookup_->begin(wanted)) {}

  std::vector<Asked> next() override { return std::exchange(asked_, {}); }
  void take(size_t i, const rpc::IncomingValue& answer) override { lookup_->take(i, answer); }

  bool asks() const { return !asked_.empty(); }
  const std::shared_ptr<RowLookup>& rows() const { return lookup_; }

 private:
  const std::shared_ptr<RowLookup> lookup_;
  std::vector<Asked> asked_;  // until it was sent
};

}  // namespace gld::exchange

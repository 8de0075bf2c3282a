// What a process that holds a partition answers to others, without an interpreter.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "exchange/queries.h"
#include "feature/gather.h"
#include "graph/csr.h"
#include "routing/partition_book.h"
#include "routing/sorted_ids.h"
#include "rpc/value.h"

namespace gld::exchange {

// Made once, by whichever thread asks first; others wait for it. What `make` throws is thrown to who asked, and who
// asks next tries again.
template <typename T>
class Lazy {
 public:
  using Make = std::function<std::shared_ptr<const T>()>;

  explicit Lazy(Make make) : make_(std::move(make)) {}
  const T& get() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (made_ == nullptr) made_ = make_();
    return *made_;
  }

 private:
  const Make make_;
  std::mutex mutex_;
  std::shared_ptr<const T> made_;
};

// The edges of one type in the rows of a partition's nodes.
struct HeldEdges {
  std::shared_ptr<const Csr> graph;
  std::shared_ptr<const PartitionBook> book;  // of the rows
  std::shared_ptr<Lazy<Csr>> weighted;        // the graph with its counted weights; null where it has none
};

// Rows of one tensor, where this process reads them.
struct HeldRows {
  std::shared_ptr<const RowStore> store;
  std::function<Tensor(const Tensor& rows)> gather;  // in place of a store: who reads memory that is not the host's
  size_t gathered_row_bytes = 0;                     // bytes of a row that it gives

  bool exist() const { return store != nullptr || gather != nullptr; }
  size_t row_bytes() const { return store != nullptr ? store->row_bytes : gathered_row_bytes; }
};

// Copies of rows of other partitions. They stand behind the partition's own, in `rows`.
struct HeldCopies {
  HeldRows rows;
  Tensor ids;     // int64 [n], ascending
  Tensor places;  // int64 [n], the row of each
};

// The rows of one store. They do not exist where others have such rows, and this partition none.
struct HeldStore {
  std::string name;
  std::shared_ptr<const PartitionBook> book;  // null where rows lie with edges
  std::shared_ptr<Lazy<SortedIds>> edge_ids;  // then: the ids of the partition's edges, in the order of the rows
  HeldRows own;
  std::optional<HeldCopies> copies;
};

struct HeldPartition {
  int number = 0;
  std::vector<HeldEdges> edges;  // by edge type
  std::vector<HeldStore> stores;
  std::shared_ptr<ThreadPool> pool;  // whose threads share the work of one answer, which does not depend on them
  // An answer of more bytes is refused before it is made: an id that is asked for a million times costs who asks four
  // bytes each, and this side as many rows.
  int64_t max_answer_bytes = 0;
};

// Believes nothing of what it is asked. Throws ProtocolError for what is no query, UnknownId for a node or an edge that
// is not of this partition, InvalidArgument for types, stores and draws that there are not, and for too large an
// answer, PartitionFormat where what is held is damaged or rows are missing that others have.
class PartitionServer : public rpc::PromptAnswerer {
 public:
  // Throws InvalidArgument where what is held does not fit together.
  explicit PartitionServer(HeldPartition held);
  PartitionServer(const PartitionServer&) = delete;
  PartitionServer& operator=(const PartitionServer&) = delete;

  rpc::OutgoingValue answer(const rpc::IncomingValue& query) override;
  // Queries of one kind that it has answered.
  struct Answers {
    uint64_t count = 0;
    uint64_t ns = 0;     // of making the answers; rows of a store are gathered later, when they are sent
    uint64_t bytes = 0;  // of their payloads
  };
  // By kind, in the order of `Query`.
  std::vector<Answers> answered() const;

 private:
  struct Found {
    const HeldRows& in;
    Tensor rows;  // int64 [n]
  };
  std::vector<Answered> answer_body(const HopQuery& query) const;
  std::vector<Answered> answer_body(const RowsQuery& query) const;
  std::vector<Answered> answer_body(const OwnedQuery& query) const;
  std::vector<Answered> answer_body(const HasEdgesQuery& query) const;
  std::vector<Answered> answer_body(const InducedQuery& query) const;
  std::vector<Answered> answer_body(const DegreesQuery& query) const;

  const HeldEdges& edges_of(int edge_type) const;
  Tensor rows_of(const PartitionBook& book, const Tensor& ids) const;
  Tensor owners_of(const PartitionBook& book, const Tensor& ids) const;
  const HeldStore& store_of(const std::string& name) const;
  Found find(const HeldStore& store, const Tensor& ids) const;
  Tensor rows_with_copies(const HeldStore& store, const Tensor& ids, bool* has_others) const;
  Answered gather(const Found& found, int64_t max_bytes) const;

  const HeldPartition held_;
  struct Counters {
    std::atomic<uint64_t> count{0}, ns{0}, bytes{0};
  };
  std::array<Counters, std::variant_size_v<Query>> answered_;
  std::unordered_map<std::string, const HeldStore*> stores_;
  std::string known_stores_;  // for messages
};

}  // namespace gld::exchange

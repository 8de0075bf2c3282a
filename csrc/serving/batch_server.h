// Gives finished batches to clients, by queries, without the interpreter.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "rpc/value.h"
#include "serving/batch_shelf.h"

namespace gld::serving {

// A query is [producer, run, index, oldest or nil], see BatchShelf::fetch; its answer is the batch as its worker
// encoded it. What is wrong with it is told as the remote functions of graphlearn_dist.distributed.dist_server do.
class BatchServer : public rpc::Answerer {
 public:
  // The batches on a shelf are for the client of that key alone, see rpc::Stream::peer_key; `owner` is its name for
  // others.
  void add(uint64_t producer, std::shared_ptr<BatchShelf> shelf, std::string client_key, std::string owner);
  void remove(uint64_t producer);
  // Whoever asks from now on is told this, as rpc/failure.h packs it.
  void end(std::string failure);
  void begin(const rpc::IncomingValue& query, const std::shared_ptr<rpc::Reply>& reply) override;
  bool keeps_order() const override { return true; }  // else credit would go to batches that are read later

 private:
  struct Served {
    std::shared_ptr<BatchShelf> shelf;
    std::string client_key, owner;
  };
  std::mutex mutex_;  // of what follows
  std::map<uint64_t, Served> producers_;
  std::string over_;
};

// The head of such a query.
std::string fetch_query(uint64_t producer, int64_t run, int64_t index, std::optional<int64_t> oldest);

}  // namespace gld::serving

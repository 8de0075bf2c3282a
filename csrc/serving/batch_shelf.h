// Finished batches of one producer, and who waits for them: by connections of others, without the interpreter, or in
// this process.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serving/batch_share.h"

namespace gld::serving {

// A finished batch as its worker encoded it, or those that travel together; or what became of one.
struct Item {
  std::string head;
  const void* payload = nullptr;
  uint64_t payload_bytes = 0;
  std::shared_ptr<const void> owner;         // of the payload: its slot, or its place in the ring
  std::shared_ptr<const void> memory;        // where the slot lies; it may outlive that
  uint64_t region = 0, offset = 0;           // the number of its region, and where the slot lies there; 0: in the ring
  std::shared_ptr<const void> announcement;  // the place in the ring that it takes until it is handed on
};

// Who waits for a batch. Called once, by either, on any thread; it must not block.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void take(Item item) = 0;
  // An error, as rpc/failure.h packs it.
  virtual void fail(const std::string& failure) = 0;
};

// What may be sent of a run's batches to who reads them is counted in bytes, and granted by the reader. Batches go in
// their order then, so that none takes the room of one that is read before it. The next one goes when it fits into the
// limit beside those that were sent and not read; whatever its size if all of these are read after it. Who asks without
// saying which batch it reads next gets what is there.
//
// All methods may be called from any thread.
class BatchShelf : public std::enable_shared_from_this<BatchShelf> {
 public:
  // `name`: of the producer, for errors.
  BatchShelf(std::string name, int num_workers)
      : name_(std::move(name)), failures_(num_workers), announced_(num_workers, 0) {}

  // Begins a run of these batches: what is left of an older one is dropped, and who waits for it fails.
  // `end` is given in place of batches beyond the last of the epoch.
  void begin_run(int64_t run, int64_t num_batches, BatchShare share, std::optional<uint64_t> credit_bytes, Item end);
  // A worker has made batch `index` of a run, and others up to `count` behind it. Without effect where that run is
  // over.
  void put(int worker, int64_t run, int64_t index, int64_t count, Item item);
  // Whether that is what the worker makes next of a run that is not over: it makes its batches in their order.
  bool is_next(int worker, int64_t run, int64_t index, int64_t count) const;
  // A worker will make nothing more: who waits for its batches, now or later, fails, unless they are there.
  void fail(int worker, std::string failure);
  // Nothing is given any more: all fail. Idempotent: the first failure stays.
  void end(const std::string& failure);

  // Asks for a batch; a number for forget(). `oldest`: the batch that the reader reads next, where it gives credit.
  // Throws InvalidArgument where the run is over, or has no such batch. Who waits for it already fails: he may have
  // given it up, and this side not know of that yet.
  uint64_t fetch(int64_t run, int64_t index, std::optional<int64_t> oldest, std::shared_ptr<Receiver> receiver);
  // Nobody waits any more: the receiver is not called from now on. False: it was called already, or will be.
  bool forget(uint64_t fetch);
  // The reader of a run has read all its batches before `oldest`.
  void grant(int64_t run, int64_t oldest);

  // Batches of the run that a worker has announced.
  int64_t announced(int worker) const;
  // Messages that wait for who asks for them.
  size_t num_ready() const;
  // Limit and bytes of what may be, and is, with the reader unread; zeros where it gives no credit.
  std::pair<uint64_t, uint64_t> credit() const;
  // How long batches waited for credit alone, of all runs.
  uint64_t credit_ns() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    uint64_t number;
    std::shared_ptr<Receiver> receiver;
  };
  // What is to be done without the lock: receivers may send, and what is dropped may tell others.
  struct Todo {
    std::vector<std::pair<std::shared_ptr<Receiver>, Item>> given;
    std::vector<std::pair<std::shared_ptr<Receiver>, std::string>> failed;
    std::vector<Item> dropped;
    ~Todo();
  };
  std::optional<int64_t> worker_of(int64_t index) const;
  void hand_on(Todo& todo);
  void empty(Todo& todo, const std::string& failure);
  void give(std::map<int64_t, Waiting>& to, std::map<int64_t, Waiting>::iterator waiting, Todo& todo);
  void grant_locked(int64_t oldest);

  const std::string name_;
  mutable std::mutex mutex_;  // of what follows
  int64_t run_ = 0, num_batches_ = 0;
  BatchShare share_;
  Item end_;
  std::optional<std::string> over_;
  std::vector<std::optional<std::string>> failures_;  // by worker
  std::vector<int64_t> announced_;                    // by worker
  std::map<int64_t, Item> items_;                     // by batch
  std::map<int64_t, Waiting> waiting_, in_order_;     // by batch; in_order_: those that go by credit
  std::map<int64_t, uint64_t> sent_;                  // by batch, bytes: to who reads them, and has not
  std::optional<uint64_t> limit_bytes_;
  uint64_t sent_bytes_ = 0, credit_ns_ = 0, next_number_ = 1;
  std::optional<Clock::time_point> held_back_;  // since when the first of in_order_ waits for credit alone
};

}  // namespace gld::serving

// Drives exchanges over streams, with threads of its own: the interpreter begins one and is told when it is over.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "exchange/exchange.h"
#include "rpc/mailbox.h"
#include "rpc/query_client.h"

namespace gld::exchange {

// How an exchange ended.
struct Ending {
  enum class What {
    kDone,
    kError,      // `error`: of this side
    kFailed,     // `failure` (see rpc/failure.h): of the holder of `partition`
    kLost,       // its connection is gone, or there is none: `failure` says why
    kLate,       // it did not answer in time
    kMalformed,  // its answer breaks the protocol: `failure` says how
  };
  uint64_t run = 0;
  What what = What::kDone;
  int partition = -1;
  std::string failure;
  std::exception_ptr error;
};

// Where the holders of partitions are reached.
struct Holders {
  std::vector<std::shared_ptr<rpc::Stream>> streams;  // by partition; null where there is no connection
  std::string service;                                // what they are asked as
  double timeout_s = 180;                             // for each answer
};

// Where the time of exchanges went, added up over all that were begun; nanoseconds.
struct StageTimes {
  uint64_t split = 0;   // by owner, and asking
  uint64_t own = 0;     // what is done here while others work
  uint64_t wait = 0;    // for their answers, beyond that
  uint64_t stitch = 0;  // taking answers, and putting them together
};

// Held by shared pointers alone. All methods but poll() may be called from any thread.
class Runner : public std::enable_shared_from_this<Runner> {
 public:
  // Starts its threads. Throws std::system_error.
  Runner(std::shared_ptr<rpc::QueryClient> client, int num_threads);
  // In a process forked from its own there are no threads, and nothing is touched.
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Begins an exchange; its number, by which poll() tells of its end.
  uint64_t start(std::shared_ptr<Exchange> exchange, Holders holders);
  // Nobody wants it any more: its end is told soon, whatever its holders do.
  void cancel(uint64_t run);
  StageTimes times() const { return {split_ns_, own_ns_, wait_ns_, stitch_ns_}; }
  // Becomes readable when poll() has something to tell.
  int fd() const { return bell_.fd(); }
  std::vector<Ending> poll();
  // Ends the threads; exchanges that are under way end nowhere. Idempotent.
  void close();

 private:
  struct Run;
  void work();
  void advance(const std::shared_ptr<Run>& run);
  // The next round: whether its answers are all there already.
  bool begin_round(const std::shared_ptr<Run>& run);
  void end_round(Run& run);
  void take(Run& run, size_t i);
  void answered(const std::shared_ptr<Run>& run, size_t i, rpc::QueryOutcome outcome);
  void leave_round(const std::shared_ptr<Run>& run);
  void finish(const std::shared_ptr<Run>& run);

  const std::shared_ptr<rpc::QueryClient> client_;
  const pid_t owner_;
  const rpc::Bell bell_;
  std::atomic<uint64_t> split_ns_{0}, own_ns_{0}, wait_ns_{0}, stitch_ns_{0};
  std::mutex mutex_;  // of what follows
  std::condition_variable has_work_;
  std::deque<std::shared_ptr<Run>> ready_;
  std::unordered_map<uint64_t, std::shared_ptr<Run>> runs_;
  std::vector<Ending> endings_;
  uint64_t next_run_ = 1;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace gld::exchange

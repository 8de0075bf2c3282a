// Asks peers without the interpreter.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc/frame.h"
#include "rpc/outbox.h"
#include "rpc/value.h"

namespace gld::rpc {

class Stream;

// How a query ended.
struct QueryOutcome {
  enum class What {
    kAnswered,  // `frame` is the answer
    kFailed,    // `frame` is an error (see failure.h), raised by who was asked
    kLost,      // the connection is gone: `why`
    kLate,      // its deadline has passed
  };
  What what = What::kLost;
  Frame frame;
  std::string why;
};

// Called once, on any thread; it must not block, nor ask.
using QueryCallback = std::function<void(QueryOutcome)>;

// All methods may be called from any thread.
class QueryClient {
 public:
  // Sends a query. The callback may be called before this returns, and is not where this throws (InvalidArgument,
  // std::bad_alloc). Gives a number for forget().
  uint64_t ask(const std::shared_ptr<Stream>& stream, const std::string& service, const OutgoingValue& query,
               Clock::time_point deadline, QueryCallback callback);
  // Nobody waits any more: the callback is not called from now on, and the peer is told. False: it was called already.
  bool forget(uint64_t query);

  // For streams and their engine.
  void answered(const std::shared_ptr<Stream>& stream, Frame frame);
  void closed(uint64_t stream, const std::string& why);
  void expire(Clock::time_point now);

 private:
  struct Pending {
    std::shared_ptr<Stream> stream;
    Clock::time_point deadline;
    QueryCallback callback;
  };
  std::optional<Pending> take(uint64_t query, uint64_t stream);

  std::atomic<uint64_t> next_id_{1};
  std::mutex mutex_;  // of what follows
  std::unordered_map<uint64_t, Pending> pending_;
};

}  // namespace gld::rpc

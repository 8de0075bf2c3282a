// Answers on their way to threads that wait for them.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "rpc/frame.h"

namespace gld::rpc {

// From expect() to take(), or the end of a wait() without an answer, the answer to a request belongs to the thread that
// waits for it. One that got it calls take() when it has settled the request: the end of the connection, which may be
// reported meanwhile, must not settle it first.
// All methods may be called from any thread.
class Answers {
 public:
  using Clock = std::chrono::steady_clock;

  // Some thread is going to wait for the answer to this request.
  void expect(uint64_t request_id);
  // That thread waits: the answer, or nothing where it was released or `deadline` has passed. `check` is called when a
  // signal may have come; what it throws ends the wait, and take() must follow.
  std::optional<Frame> wait(uint64_t request_id, Clock::time_point deadline, const std::function<void()>& check);
  // Whether wait() would return at once, whatever the deadline.
  bool is_settled(uint64_t request_id);
  // Answers that threads wait for, or are about to.
  size_t count();
  // Nobody waits any more: what has been handed over meanwhile, if anything.
  std::optional<Frame> take(uint64_t request_id);

  // An answer came. True: it is handed over, and `frame` is moved from.
  bool offer(Frame& frame);
  // Nothing will come: lets the thread go. False: it has its answer.
  bool release(uint64_t request_id);

 private:
  struct Place {
    std::atomic<uint32_t> word{0};  // changes when there is something to see
    std::atomic<int> sleepers{0};   // threads that look at it, or sleep
    std::optional<Frame> frame;
    bool is_taken = false;
    bool is_released = false;
  };
  std::shared_ptr<Place> find(uint64_t request_id);
  static void wake(Place& place);

  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Place>> places_;
};

}  // namespace gld::rpc

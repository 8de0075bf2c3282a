// Work in two stages over the blocks of a loop: the first stage of a block may run on any thread at any time, the
// second runs for one block after the other, in order.
//
// Each thread takes blocks until none is left and calls finish() for each. The thread that finds the next block in
// order ready runs the second stage of it and of all that are ready behind it; the others go on taking blocks. Nothing
// waits: a thread whose block is not next, or that finds another at the second stage, leaves it to that one. So the
// second stage costs no thread its time unless it alone takes longer than a thread's share of both.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

namespace gld {

class OrderedBlocks {
 public:
  explicit OrderedBlocks(int64_t count) : count_(count), ready_(new std::atomic<bool>[count]()) {}

  // A block whose first stage the caller runs; -1 when none is left.
  int64_t take() {
    const int64_t block = taken_.fetch_add(1, std::memory_order_relaxed);
    return block < count_ ? block : -1;
  }

  // Says that the first stage of `block` is done. May call second_stage(first, end) for blocks [first, end), which
  // sees all that their first stages and all earlier second stages wrote. A second stage that throws ends all second
  // stages: no block behind it is finished.
  template <typename SecondStage>
  void finish(int64_t block, SecondStage&& second_stage) {
    ready_[block].store(true);
    for (;;) {
      if (running_.exchange(true)) return;  // that thread looks again after it lets go
      const int64_t first = finished_;
      int64_t end = first;
      while (end < count_ && ready_[end].load()) ++end;
      if (end > first) second_stage(first, end);
      finished_ = end;
      running_.store(false);
      // Sequential consistency of ready_ and running_: a block that became ready while this thread held `running_`,
      // too late for the loop above, is seen here.
      if (end == count_ || !ready_[end].load()) return;
    }
  }

 private:
  const int64_t count_;
  std::unique_ptr<std::atomic<bool>[]> ready_;
  std::atomic<int64_t> taken_{0};
  std::atomic<bool> running_{false};
  int64_t finished_ = 0;  // guarded by running_
};

}  // namespace gld

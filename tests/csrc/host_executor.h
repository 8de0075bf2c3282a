// Runs the functors of CUDA kernels on the host: the threads of a launch on several threads, in an order that has
// nothing to do with theirs.
#pragma once
#include <cstdint>
#include <cstring>

#include "common/cuda/group_scan.h"
#include "common/permutation.h"
#include "common/thread_pool.h"

namespace gld::test {

struct HostGroup {
  int64_t memory[kGroupMemory];
  bool backwards;

  template <typename Step>
  void each(Step step) {
    for (int thread = 0; thread < kGroupThreads; ++thread) step(backwards ? kGroupThreads - 1 - thread : thread);
  }
};

class HostExecutor {
 public:
  HostExecutor(ThreadPool& pool, uint64_t order) : pool_(pool), order_(order) {}

  template <typename Body>
  void for_each(int64_t max_count, const Body& body) {
    if (max_count == 0) return;
    const int64_t count = body.count();
    check_bound(count, max_count);
    in_any_order(count, [&](int64_t i) { body(i); });
  }

  template <typename Body>
  void for_each_group(int64_t max_groups, const Body& body) {
    if (max_groups == 0) return;
    const int64_t count = body.num_groups();
    check_bound(count, max_groups);
    in_any_order(count, [&](int64_t i) {
      HostGroup group{{}, mix64(order_ + i) % 2 == 1};
      body(group, i);
    });
  }

  void fill(void* memory, int byte, size_t bytes) { std::memset(memory, byte, bytes); }

 private:
  static void check_bound(int64_t count, int64_t bound) {
    if (count < 0 || count > bound) throw std::logic_error(message("a launch of ", count, " was bounded by ", bound));
  }

  template <typename Body>
  void in_any_order(int64_t count, Body&& body) {
    const Permutation order(count, ++order_);
    pool_.parallel_for(count, 32, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(order.forward(i));
    });
  }

  ThreadPool& pool_;
  uint64_t order_;
};

}  // namespace gld::test

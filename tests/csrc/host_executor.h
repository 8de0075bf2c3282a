// Runs the functors of CUDA kernels on the host: the threads of a launch on several threads, in an order that has
// nothing to do with theirs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/cuda/group_scan.h"
#include "common/cuda/launch_list.h"
#include "common/permutation.h"
#include "common/thread_pool.h"

namespace gld::test {

// The threads of each step in an order of its own: forwards, backwards, or strewn.
struct HostGroup {
  int64_t memory[kGroupMemory];
  uint64_t order;

  template <typename Step>
  void each(Step step) {
    order = mix64(order + 1);
    const uint64_t first = order >> 32, stride = order % 3 == 0 ? 1 : order % 3 == 1 ? kGroupThreads - 1 : order | 1;
    for (uint64_t i = 0; i < kGroupThreads; ++i) step(static_cast<int>((first + i * stride) % kGroupThreads));
  }
};

class HostExecutor {
 public:
  HostExecutor(ThreadPool& pool, uint64_t order) : pool_(pool), order_(order) {}

  template <typename Body>
  void for_each(int64_t max_count, const Body& body) {
    for_each(LaunchList<Body>{{max_count, body}});
  }
  template <typename Body>
  void for_each(const LaunchList<Body>& list) {
    launch(list, [](const Body& body) { return body.count(); }, [](const Body& body, int64_t i) { body(i); });
  }

  template <typename Body>
  void for_each_group(int64_t max_groups, const Body& body) {
    for_each_group(LaunchList<Body>{{max_groups, body}});
  }
  template <typename Body>
  void for_each_group(const LaunchList<Body>& list) {
    launch(
        list, [](const Body& body) { return body.num_groups(); },
        [this](const Body& body, int64_t i) {
          HostGroup group{{}, order_ + i};
          body(group, i);
        });
  }

  void fill(void* memory, int byte, size_t bytes) {
    ++num_launches_;
    std::memset(memory, byte, bytes);
  }

  // Kernels and fills until now: what the host would hand to a stream.
  int num_launches() const { return num_launches_; }

 private:
  static void check_bound(int64_t count, int64_t bound) {
    if (count < 0 || count > bound) throw std::logic_error(message("a launch of ", count, " was bounded by ", bound));
  }

  // All functors of a list at once, their threads mixed.
  template <typename Body, typename Count, typename Run>
  void launch(const LaunchList<Body>& list, Count count_of, Run run) {
    if (list.size() > kMaxTogether) throw std::logic_error("a launch of too many functors");
    std::vector<int64_t> ends;
    int64_t total = 0, bound = 0;
    for (const auto& [max_count, body] : list) {
      const int64_t count = max_count == 0 ? 0 : count_of(body);
      check_bound(count, max_count);
      ends.push_back(total += count);
      bound += max_count;
    }
    if (bound == 0) return;
    ++num_launches_;
    const Permutation order(total, ++order_);
    pool_.parallel_for(total, 32, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = order.forward(i);
        const size_t which = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
        run(list[which].body, at - (which == 0 ? 0 : ends[which - 1]));
      }
    });
  }

  ThreadPool& pool_;
  uint64_t order_;
  int num_launches_ = 0;
};

}  // namespace gld::test

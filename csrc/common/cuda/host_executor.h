// Runs the functors of kernels on the calling thread, one after the other: the same results as on a GPU, where there is
// none. What is written for kernels is tested with it on every machine.
#pragma once
#include <cstdint>
#include <cstring>

#include "common/cuda/group_scan.h"
#include "common/cuda/launch_list.h"

namespace gld {

class HostExecutor {
 public:
  template <typename Body>
  void for_each(int64_t max_count, const Body& body) {
    if (max_count == 0) return;
    const int64_t count = body.count();
    for (int64_t i = 0; i < count; ++i) body(i);
  }

  template <typename Body>
  void for_each_group(int64_t max_groups, const Body& body) {
    if (max_groups == 0) return;
    Group group;
    const int64_t count = body.num_groups();
    for (int64_t i = 0; i < count; ++i) body(group, i);
  }

  template <typename Body>
  void for_each(const LaunchList<Body>& list) {
    for (const auto& [max_count, body] : list) for_each(max_count, body);
  }
  template <typename Body>
  void for_each_group(const LaunchList<Body>& list) {
    for (const auto& [max_groups, body] : list) for_each_group(max_groups, body);
  }

  void fill(void* memory, int byte, size_t bytes) { std::memset(memory, byte, bytes); }

 private:
  struct Group {
    int64_t memory[kGroupMemory];

    template <typename Step>
    void each(Step step) {
      for (int thread = 0; thread < kGroupThreads; ++thread) step(thread);
    }
  };
};

}  // namespace gld

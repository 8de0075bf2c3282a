#include "common/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <unordered_map>

#include "common/poison.h"

namespace gld {
namespace {

constexpr size_t kSmallestBlock = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kDefaultCapacity = size_t{768} << 20;

void* system_allocate(size_t block) {
  const size_t alignment = block >= kHugePage ? kHugePage : 64;
  void* memory = std::aligned_alloc(alignment, (block + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  if (block >= kHugePage) madvise(memory, block, MADV_HUGEPAGE);  // a hint; refusal costs only speed
  return memory;
}

void free_block(void* memory, size_t block) {
  allow_first_bytes(memory, block, block);
  std::free(memory);
}

}  // namespace

struct BufferPool::State {
  std::mutex mutex;
  std::unordered_map<size_t, std::vector<void*>> idle;
  size_t capacity = kDefaultCapacity;
  Stats stats;

  ~State() { release_idle(); }

  void release_idle() {
    for (auto& entry : idle)
      for (void* memory : entry.second) free_block(memory, entry.first);
    idle.clear();
    stats.idle_bytes = 0;
  }

  void* take(size_t block) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      stats.in_use_bytes += block;
      auto found = idle.find(block);
      if (found != idle.end() && !found->second.empty()) {
        void* memory = found->second.back();
        found->second.pop_back();
        stats.idle_bytes -= block;
        ++stats.hits;
        return memory;
      }
      ++stats.misses;
    }
    return system_allocate(block);
  }

  void give_back(void* memory, size_t block) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      stats.in_use_bytes -= block;
      if (stats.idle_bytes + block <= capacity) {
        allow_first_bytes(memory, 0, block);
        idle[block].push_back(memory);
        stats.idle_bytes += block;
        return;
      }
    }
    free_block(memory, block);
  }
};

BufferPool::BufferPool() : state_(std::make_shared<State>()) {}

BufferPool& BufferPool::global() {
  static BufferPool pool;
  return pool;
}

size_t BufferPool::block_size(size_t bytes) {
  if (bytes <= kSmallestBlock) return kSmallestBlock;
  size_t power = kSmallestBlock;
  while (power * 2 < bytes) power *= 2;
  const size_t step = power / 4;
  return power + (bytes - power + step - 1) / step * step;
}

std::shared_ptr<void> BufferPool::allocate(size_t bytes) {
  const size_t block = block_size(bytes);
  void* memory = state_->take(block);
  allow_first_bytes(memory, bytes, block);
  std::shared_ptr<State> state = state_;
  return std::shared_ptr<void>(memory, [state, block](void* returned) { state->give_back(returned, block); });
}

void BufferPool::set_capacity(size_t bytes) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->capacity = bytes;
  if (state_->stats.idle_bytes > bytes) state_->release_idle();
}

void BufferPool::trim() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->release_idle();
}

BufferPool::Stats BufferPool::stats() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->stats;
}

}  // namespace gld

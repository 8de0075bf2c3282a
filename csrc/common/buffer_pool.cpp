#include "common/buffer_pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <new>
#include <optional>
#include <unordered_set>
#include <utility>

#include "common/poison.h"

namespace gld {
namespace {

constexpr size_t kSmallestBlock = 4096;
constexpr size_t kLargestBlock = size_t{1} << 62;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kDefaultCapacity = size_t{768} << 20;
// A block may be this many times as large as what it serves: batches differ in size, and a warm block that is too large
// is cheaper than a fresh one.
constexpr size_t kMostWaste = 2;

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
  std::map<size_t, std::vector<void*>> idle;  // by size; no list is empty
  size_t capacity = kDefaultCapacity;
  size_t peak_bytes = 0;  // most that was in use at once; counts only while the capacity is the default
  bool has_default_capacity = true;
  std::optional<PageLock> page_lock;
  std::unordered_set<void*> locked;  // blocks
  Stats stats;

  ~State() { free_blocks(take_idle()); }

  struct Block {
    void* memory;
    size_t bytes;
    bool is_locked;
  };

  // All idle blocks, which are the pool's no longer. With the mutex held.
  std::vector<Block> take_idle() {
    std::vector<Block> taken;
    for (const auto& [bytes, blocks] : idle)
      for (void* memory : blocks) taken.push_back({memory, bytes, locked.count(memory) != 0});
    for (const Block& block : taken) locked.erase(block.memory);
    idle.clear();
    stats.idle_bytes = 0;
    return taken;
  }

  // Without the mutex: to unlock pages takes the system a while.
  void free_blocks(const std::vector<Block>& blocks) {
    for (const auto& [memory, bytes, is_locked] : blocks) {
      if (is_locked) page_lock->unlock(memory);
      free_block(memory, bytes);
    }
  }

  // A block of at least `wanted` bytes, and its size.
  std::pair<void*, size_t> take(size_t wanted) {
    std::optional<PageLock> lock_of_new;
    {
      std::lock_guard<std::mutex> lock(mutex);
      const auto found = idle.lower_bound(wanted);
      if (found != idle.end() && found->first <= kMostWaste * wanted) {
        const size_t block = found->first;
        void* memory = found->second.back();
        found->second.pop_back();
        if (found->second.empty()) idle.erase(found);
        stats.idle_bytes -= block;
        count_use(block);
        ++stats.hits;
        return {memory, block};
      }
      if (wanted >= kHugePage) lock_of_new = page_lock;  // smaller blocks share pages with others
    }
    void* memory = system_allocate(wanted);  // may throw: what is counted below is there
    const bool is_locked = lock_of_new && lock_of_new->lock(memory, wanted);
    std::lock_guard<std::mutex> lock(mutex);
    if (is_locked) remember_locked(memory, wanted, *lock_of_new);
    count_use(wanted);
    ++stats.misses;
    return {memory, wanted};
  }

  // With the mutex held.
  void remember_locked(void* memory, size_t block, const PageLock& lock) {
    try {
      locked.insert(memory);
    } catch (...) {
      lock.unlock(memory);
      free_block(memory, block);
      throw;
    }
  }

  void count_use(size_t block) {
    stats.in_use_bytes += block;
    peak_bytes = std::max(peak_bytes, stats.in_use_bytes);
  }

  // Whether one more block may stay. Between epochs a loader returns all that it had in use, and needs it again.
  bool has_room(size_t block) const {
    const size_t kept = stats.idle_bytes + block;
    return kept <= capacity || (has_default_capacity && stats.in_use_bytes + kept <= peak_bytes);
  }

  // Runs where a tensor dies, and so must not throw.
  void give_back(void* memory, size_t block) noexcept {
    bool is_locked = false;
    {
      std::lock_guard<std::mutex> lock(mutex);
      stats.in_use_bytes -= block;
      if (has_room(block) && keep(memory, block)) return;
      is_locked = locked.erase(memory) != 0;
    }
    if (is_locked) page_lock->unlock(memory);
    free_block(memory, block);
  }

  // Whether there was memory to note the block among the idle ones. With the mutex held.
  bool keep(void* memory, size_t block) {
    try {
      const auto place = idle.try_emplace(block).first;
      try {
        place->second.push_back(memory);
      } catch (...) {
        if (place->second.empty()) idle.erase(place);
        throw;
      }
    } catch (const std::bad_alloc&) {
      return false;
    }
    allow_first_bytes(memory, 0, block);
    stats.idle_bytes += block;
    return true;
  }
};

BufferPool::BufferPool() : state_(std::make_shared<State>()) {}

BufferPool& BufferPool::global() {
  // Never destroyed: threads may still receive while the process exits.
  static BufferPool& pool = *new BufferPool;
  // A thread that receives may hold the lock while another one forks; the child would wait for it for ever.
  [[maybe_unused]] static const int registered = pthread_atfork(
      [] { pool.state_->mutex.lock(); }, [] { pool.state_->mutex.unlock(); }, [] { pool.state_->mutex.unlock(); });
  return pool;
}

size_t BufferPool::block_size(size_t bytes) {
  if (bytes > kLargestBlock) throw std::bad_alloc();
  if (bytes <= kSmallestBlock) return kSmallestBlock;
  size_t power = kSmallestBlock;
  while (power * 2 < bytes) power *= 2;
  const size_t step = power / 4;
  return power + (bytes - power + step - 1) / step * step;
}

std::shared_ptr<void> BufferPool::allocate(size_t bytes) {
  const auto [memory, block] = state_->take(block_size(bytes));
  allow_first_bytes(memory, bytes, block);
  std::shared_ptr<State> state = state_;
  return std::shared_ptr<void>(memory, [state, size = block](void* returned) { state->give_back(returned, size); });
}

void BufferPool::set_capacity(size_t bytes) {
  std::vector<State::Block> taken;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->capacity = bytes;
    state_->has_default_capacity = false;
    if (state_->stats.idle_bytes > bytes) taken = state_->take_idle();
  }
  state_->free_blocks(taken);
}

void BufferPool::trim() {
  std::vector<State::Block> taken;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    taken = state_->take_idle();
    state_->peak_bytes = state_->stats.in_use_bytes;
  }
  state_->free_blocks(taken);
}

void BufferPool::lock_pages(PageLock lock) {
  std::vector<State::Block> taken;
  {
    std::lock_guard<std::mutex> guard(state_->mutex);
    if (state_->page_lock) return;
    taken = state_->take_idle();  // of which none is locked
    state_->page_lock = std::move(lock);
  }
  state_->free_blocks(taken);
}

BufferPool::Stats BufferPool::stats() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->stats;
}

}  // namespace gld

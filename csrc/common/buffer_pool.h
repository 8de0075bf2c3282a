// Warm memory for outputs.
//
// Fresh memory from the system costs a page fault per 4 KiB, about as much as filling it; a batch's outputs are
// tens of megabytes. The pool keeps returned blocks by size class and hands them out again, still mapped.
#pragma once
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace gld {

class BufferPool {
 public:
  static BufferPool& global();
  BufferPool();

  // At least `bytes` of uninitialised memory, 64-byte aligned (2 MiB-aligned and advised huge from 2 MiB on).
  // Returned to the pool when the last reference dies, from whatever thread. Throws std::bad_alloc, and counts nothing
  // then. Thread-safe.
  std::shared_ptr<void> allocate(size_t bytes);

  // Blocks beyond this many idle bytes go back to the system instead of the pool. By default it is 768 MiB, or more
  // where more was in use at once: idle and used memory together then stay below that peak.
  void set_capacity(size_t bytes);
  // Gives all idle blocks back to the system, and forgets the peak.
  void trim();

  // Locks and unlocks the pages of a block; the first says whether it could.
  struct PageLock {
    std::function<bool(void* memory, size_t bytes)> lock;
    std::function<void(void* memory)> unlock;
  };
  // New blocks of 2 MiB and more have locked pages where that can be; idle blocks go back to the system. The first call
  // counts.
  void lock_pages(PageLock lock);

  struct Stats {
    size_t idle_bytes = 0;    // kept for reuse
    size_t in_use_bytes = 0;  // handed out
    size_t hits = 0;          // allocations served from idle blocks
    size_t misses = 0;        // allocations that went to the system
  };
  Stats stats() const;

  // Size of a new block for a request; four classes per power of two bound the waste at a quarter. An idle block that
  // serves it may be up to twice as large. Throws std::bad_alloc beyond 2^62.
  static size_t block_size(size_t bytes);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with live blocks, so that a block may outlive the pool at exit
};

}  // namespace gld

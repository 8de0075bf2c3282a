// Sleeping on a word of shared memory until another process changes it.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace gld {

// Returns when the word is woken, when it is not `expected`, after `timeout`, or for no reason: check again. False: it
// was neither woken nor changed, so that the time is over or a signal came.
inline bool futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout) {
  timespec relative;
  relative.tv_sec = static_cast<time_t>(timeout.count() / 1000000000);
  relative.tv_nsec = static_cast<long>(timeout.count() % 1000000000);
  return syscall(SYS_futex, &word, FUTEX_WAIT, expected, &relative, nullptr, 0) == 0 || errno == EAGAIN;
}

// Wakes all who sleep.
inline void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Changes the word, so that nobody goes to sleep on what it was, and wakes all who sleep.
inline void futex_bump(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(word);
}

}  // namespace gld

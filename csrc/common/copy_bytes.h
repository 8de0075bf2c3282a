// Copies between the memories of two processes.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gld {

// Copies `nbytes` from `from` to `to`, which do not overlap. Many bytes are written past the caches: whoever reads them
// is another process, or comes later, and a cache would first have read what is about to be overwritten.
void copy_bytes(void* to, const void* from, size_t nbytes);

// The same for values that are made as they are written: in a few thousands, which lie in a core's cache meanwhile.
class ValueWriter {
 public:
  static constexpr int64_t kRoom = 1024;
  static constexpr int64_t kSpare = 8;

  // Whether so many values are written past the caches.
  static bool streams(int64_t count);

  // For values from `to` on.
  ValueWriter(int64_t* to, bool is_streamed) : to_(to), is_streamed_(is_streamed) {}
  // Where the next values are wanted: room for kRoom, and for kSpare behind them, which may be written in vain.
  int64_t* room() { return waiting_ + num_waiting_; }
  // So many were put there, at most kRoom.
  void advance(int64_t count) {
    num_waiting_ += count;
    if (num_waiting_ >= kRoom) pass_on();
  }
  // All are there, and other threads may be told.
  void finish();

 private:
  void pass_on();  // keeps what is no whole line

  int64_t* to_;
  bool is_streamed_;
  int64_t num_waiting_ = 0;
  alignas(64) int64_t waiting_[2 * kRoom + kSpare];
};

}  // namespace gld

// Memory whose holder is told, through a descriptor, when its last user has let it go: a few milliseconds later, so
// that who says something to the lender anyway tells that too, and no thread need be woken for it.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

namespace gld {

// Loans by number. Giving one back takes no memory, waits for nobody and cannot fail: it may happen in a destructor.
// Thread-safe. What a fork of the process gives back is not back: that process has a copy of its own.
class Loans {
 public:
  // std::system_error: no descriptors are left.
  Loans();
  ~Loans();
  Loans(const Loans&) = delete;
  Loans& operator=(const Loans&) = delete;

  int fd() const { return fd_; }  // can be read when take() has something to tell
  uint64_t lend();
  void give_back(uint64_t number) noexcept;
  std::vector<uint64_t> take();  // what was given back since the last call, in order

 private:
  const int fd_;
  const int owner_;  // the process
  std::mutex mutex_;
  uint64_t last_ = 0;
  size_t out_ = 0;
  std::vector<uint64_t> back_;  // has room for all that is out
};

}  // namespace gld

#include "channel/loans.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace gld {
namespace {

constexpr long kDelayNs = 5'000'000;

int open_timer() {
  const int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "timerfd_create");
  return fd;
}

// It goes off once, after that time; with 0 not at all, and it is as if it had not.
void set_timer(int fd, long delay_ns) noexcept {
  const itimerspec when{{0, 0}, {0, delay_ns}};
  timerfd_settime(fd, 0, &when, nullptr);
}

}  // namespace

Loans::Loans() : fd_(open_timer()), owner_(static_cast<int>(getpid())) {}

Loans::~Loans() { close(fd_); }

uint64_t Loans::lend() {
  const std::lock_guard lock(mutex_);
  back_.reserve(back_.size() + out_ + 1);
  ++out_;
  return ++last_;
}

void Loans::give_back(uint64_t number) noexcept {
  if (static_cast<int>(getpid()) != owner_) return;  // the mutex may be that of a thread which did not come along
  const std::lock_guard lock(mutex_);
  --out_;
  back_.push_back(number);
  if (back_.size() == 1) set_timer(fd_, kDelayNs);
}

std::vector<uint64_t> Loans::take() {
  const std::lock_guard lock(mutex_);
  if (back_.empty()) return {};
  set_timer(fd_, 0);
  std::vector<uint64_t> out(back_);
  back_.clear();  // and keeps its room
  return out;
}

}  // namespace gld

#include "channel/loans.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace gld {
namespace {

int open_event() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return fd;
}

}  // namespace

Loans::Loans() : fd_(open_event()), owner_(static_cast<int>(getpid())) {}

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
  if (back_.size() > 1) return;  // it has been told already
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);  // from zero it cannot overflow
}

std::vector<uint64_t> Loans::take() {
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t was_read = read(fd_, &count, sizeof count);  // nothing there: nothing came back
  std::vector<uint64_t> out(back_);
  back_.clear();  // and keeps its room
  return out;
}

}  // namespace gld

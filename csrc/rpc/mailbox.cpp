#include "rpc/mailbox.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

namespace gld::rpc {
namespace {

constexpr uint64_t kBell = 0;  // streams count from 1

int checked(int descriptor, const char* what) {
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), what);
  return descriptor;
}

bool add_to(int epoll, int descriptor, uint64_t id) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

}  // namespace

Bell::Bell() : fd_(checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {}

Bell::~Bell() { ::close(fd_); }

void Bell::ring() const {
  const uint64_t one = 1;
  // Fails only where the counter is full, and then it rings already.
  [[maybe_unused]] const ssize_t count = ::write(fd_, &one, sizeof one);
}

void Bell::hush() const {
  uint64_t counter;
  [[maybe_unused]] const ssize_t count = ::read(fd_, &counter, sizeof counter);  // it may not have rung
}

Watch::Watch() : fd_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) { add_to(fd_, bell_.fd(), kBell); }

Watch::~Watch() { ::close(fd_); }

bool Watch::add(int socket, uint64_t id) const { return add_to(fd_, socket, id); }

void Watch::remove(int socket) const { epoll_ctl(fd_, EPOLL_CTL_DEL, socket, nullptr); }

std::vector<uint64_t> Watch::ready() const {
  epoll_event events[64];
  const int count = epoll_wait(fd_, events, 64, 0);
  std::vector<uint64_t> ids;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kBell) {
      bell_.hush();
    } else {
      ids.push_back(events[i].data.u64);
    }
  }
  return ids;
}

void Mailbox::queue_for_engine(std::shared_ptr<Stream> stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_stopping_) return;
  if (streams_.empty()) to_engine.ring();
  streams_.push_back(std::move(stream));
}

std::vector<std::shared_ptr<Stream>> Mailbox::take_streams() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(streams_, {});
}

void Mailbox::stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  is_stopping_ = true;
  to_engine.ring();
}

bool Mailbox::is_stopping() {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_stopping_;
}

void Mailbox::queue_for_loop(std::vector<Event>& events, bool by_loop) {
  if (events.empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (events_.empty() && !by_loop) loop.ring();  // else it is awake for something earlier
  std::move(events.begin(), events.end(), std::back_inserter(events_));
  events.clear();
}

std::vector<Event> Mailbox::take_events() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(events_, {});
}

}  // namespace gld::rpc

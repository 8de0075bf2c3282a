#include "rpc/outbox.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace gld::rpc {
namespace {

// What the sender itself writes: more would keep the interpreter waiting for longer than another thread costs.
constexpr size_t kImmediateBytes = 64 << 10;
constexpr size_t kMaxParts = 256;  // of one system call
constexpr int kRounds = 32;        // system calls in a row, so that one busy connection does not starve the others

size_t total(const std::vector<iovec>& parts) {
  size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

// Leaves out the first `bytes`; gives the index of the first part that is left.
size_t skip(std::vector<iovec>& parts, size_t first, size_t& bytes) {
  while (first < parts.size() && parts[first].iov_len <= bytes) bytes -= parts[first++].iov_len;
  if (first < parts.size()) {
    parts[first].iov_base = static_cast<uint8_t*>(parts[first].iov_base) + bytes;
    parts[first].iov_len -= bytes;
    bytes = 0;
  }
  return first;
}

}  // namespace

// Bytes taken by the socket; 0 where it takes none or is broken, with the reason in errno.
size_t Outbox::write(const std::vector<iovec>& parts) {
  msghdr header{};
  header.msg_iov = const_cast<iovec*>(parts.data());
  header.msg_iovlen = parts.size();
  ssize_t count;
  do {
    count = sendmsg(socket_, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count <= 0) return 0;
  last_progress_.store(Clock::now().time_since_epoch(), std::memory_order_relaxed);
  return static_cast<size_t>(count);
}

bool Outbox::send(uint64_t token, std::vector<iovec> parts) {
  const size_t bytes = total(parts);
  size_t written = 0;
  std::unique_lock<std::mutex> writing(writing_, std::defer_lock);
  if (bytes <= kImmediateBytes && parts.size() <= kMaxParts && this->bytes() == 0 && writing.try_lock()) {
    std::unique_lock<std::mutex> lock(queue_mutex_);
    if (queue_.empty() && !closed_) {
      lock.unlock();
      written = write(parts);  // a broken socket is found by the flush that follows
      if (written == bytes) return true;
    }
  }
  Message message{token, std::move(parts)};
  size_t rest = written;
  message.next = skip(message.parts, 0, rest);
  std::lock_guard<std::mutex> lock(queue_mutex_);
  if (closed_) return false;
  if (queue_.empty()) last_progress_.store(Clock::now().time_since_epoch(), std::memory_order_relaxed);
  bytes_ += bytes - written;
  // What began goes on, whatever was queued meanwhile; `writing` is still held.
  if (written > 0) {
    queue_.push_front(std::move(message));
  } else {
    queue_.push_back(std::move(message));
  }
  return false;
}

bool Outbox::send_control(const ControlFrame& frame) {
  return bytes() > 0 || send(0, {{const_cast<uint8_t*>(frame.data()), frame.size()}});
}

Outbox::State Outbox::flush(std::vector<uint64_t>& sent) {
  std::lock_guard<std::mutex> writing(writing_);
  std::vector<iovec> parts;
  for (int round = 0; round < kRounds; ++round) {
    parts.clear();
    {
      std::lock_guard<std::mutex> lock(queue_mutex_);
      for (const Message& message : queue_) {
        const auto first = message.parts.begin() + message.next;
        const auto room = std::min<ptrdiff_t>(kMaxParts - parts.size(), message.parts.end() - first);
        parts.insert(parts.end(), first, first + room);
        if (parts.size() == kMaxParts) break;
      }
    }
    if (parts.empty()) return State::kEmpty;
    const size_t count = write(parts);
    if (count == 0)
      return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? State::kBlocked : State::kBroken;
    advance(count, sent);
  }
  return State::kBlocked;
}

void Outbox::advance(size_t bytes, std::vector<uint64_t>& sent) {
  std::lock_guard<std::mutex> lock(queue_mutex_);
  bytes_ -= std::min(bytes, this->bytes());
  while (!queue_.empty()) {
    Message& message = queue_.front();
    message.next = skip(message.parts, message.next, bytes);
    if (message.next < message.parts.size()) return;
    if (message.token != 0) sent.push_back(message.token);
    queue_.pop_front();
  }
}

void Outbox::close() {
  std::lock_guard<std::mutex> writing(writing_);
  std::lock_guard<std::mutex> lock(queue_mutex_);
  closed_ = true;
  queue_.clear();
  bytes_ = 0;
}

}  // namespace gld::rpc

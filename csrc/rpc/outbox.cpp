#include "rpc/outbox.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "common/buffer_pool.h"

namespace gld::rpc {
namespace {

// What the sender itself writes: more would keep the interpreter waiting for longer than another thread costs.
constexpr size_t kImmediateBytes = 64 << 10;
constexpr size_t kMaxParts = 256;  // of one system call
// What is made at once of what is made when it is sent: the kernel copies it out of the cache.
constexpr size_t kBlockBytes = 128 << 10;
constexpr int kRounds = 32;  // system calls in a row, so that one busy connection does not starve the others

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
size_t Outbox::write(const iovec* parts, size_t count) {
  msghdr header{};
  header.msg_iov = const_cast<iovec*>(parts);
  header.msg_iovlen = std::min(count, kMaxParts);
  ssize_t written;
  do {
    written = sendmsg(socket_, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (written < 0 && errno == EINTR);
  if (written <= 0) return 0;
  last_progress_.store(Clock::now().time_since_epoch(), std::memory_order_relaxed);
  return static_cast<size_t>(written);
}

bool Outbox::send(uint64_t token, std::vector<iovec> parts) {
  return send_or_queue({token, std::move(parts), 0, {}, {}, 0, {}}, kImmediateBytes);
}

bool Outbox::send_owned(std::vector<iovec> parts, Owners owners, Sources sources) {
  return send_or_queue({0, std::move(parts), 0, std::move(owners), std::move(sources), 0, {}}, SIZE_MAX);
}

// How many parts, from the next on, can be written now. Makes a block where the next is yet to be made. By who holds
// writing_: the message is in nobody else's hands, or the first of the queue.
size_t Outbox::num_ready(Message& message) {
  std::vector<iovec>& parts = message.parts;
  size_t end = message.next;
  while (end < parts.size() && (parts[end].iov_base != nullptr || parts[end].iov_len == 0)) ++end;
  if (end > message.next || end == parts.size()) return end - message.next;
  iovec& rest = parts[message.next];
  Source& source = *message.sources.front();
  const size_t unit = source.unit_bytes();
  const size_t bytes = std::min(rest.iov_len, std::max<size_t>(kBlockBytes / unit, 1) * unit);
  if (message.block_bytes < bytes) {
    message.block_bytes = std::max(bytes, kBlockBytes);
    message.block = BufferPool::global().allocate(message.block_bytes);
  }
  source.write(message.made, bytes, message.block.get());
  rest.iov_len -= bytes;
  message.made += bytes;
  if (rest.iov_len == 0) {
    message.sources.pop_front();
    message.made = 0;
  }
  parts.insert(parts.begin() + message.next, iovec{message.block.get(), bytes});
  return 1;
}

bool Outbox::send_or_queue(Message message, size_t immediate_bytes) {
  const size_t bytes = total(message.parts);
  size_t written = 0;
  std::unique_lock<std::mutex> writing(writing_, std::defer_lock);
  if (bytes <= immediate_bytes && this->bytes() == 0 && writing.try_lock()) {
    std::unique_lock<std::mutex> lock(queue_mutex_);
    if (queue_.empty() && !closed_) {
      lock.unlock();
      size_t count = 0;
      try {
        do {  // a broken socket is found by the flush that follows
          const size_t ready = num_ready(message);
          count = write(message.parts.data() + message.next, ready);
          written += count;
          size_t rest = count;
          message.next = skip(message.parts, message.next, rest);
        } while (count > 0 && written < bytes);
      } catch (const std::bad_alloc&) {  // and so is memory that is not to be had
      }
      if (written == bytes) return true;
    }
  }
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
  std::vector<Message> done;
  std::lock_guard<std::mutex> writing(writing_);
  std::vector<iovec> parts;
  for (int round = 0; round < kRounds; ++round) {
    parts.clear();
    Message* first_message;
    {
      std::lock_guard<std::mutex> lock(queue_mutex_);
      if (queue_.empty()) return State::kEmpty;
      first_message = &queue_.front();
    }
    try {
      num_ready(*first_message);  // makes a block without the lock: nobody else touches the first while this writes
    } catch (const std::bad_alloc&) {
      errno = ENOMEM;
      return State::kBroken;
    }
    {
      std::lock_guard<std::mutex> lock(queue_mutex_);
      for (Message& message : queue_) {
        if (message.parts[message.next].iov_base == nullptr) break;  // the next time
        const size_t ready = num_ready(message);
        const auto first = message.parts.begin() + static_cast<ptrdiff_t>(message.next);
        parts.insert(parts.end(), first, first + static_cast<ptrdiff_t>(std::min(kMaxParts - parts.size(), ready)));
        if (parts.size() == kMaxParts || message.next + ready < message.parts.size()) break;
      }
    }
    const size_t count = write(parts.data(), parts.size());
    if (count == 0)
      return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? State::kBlocked : State::kBroken;
    const size_t before = done.size();
    advance(count, done);
    for (size_t i = before; i < done.size(); ++i)
      if (done[i].token != 0) sent.push_back(done[i].token);
  }
  return State::kBlocked;
}

void Outbox::advance(size_t bytes, std::vector<Message>& done) {
  std::lock_guard<std::mutex> lock(queue_mutex_);
  bytes_ -= std::min(bytes, this->bytes());
  while (!queue_.empty()) {
    Message& message = queue_.front();
    message.next = skip(message.parts, message.next, bytes);
    if (message.next < message.parts.size()) return;
    done.push_back(std::move(message));
    queue_.pop_front();
  }
}

void Outbox::close() {
  std::deque<Message> dropped;  // dies without a lock
  std::lock_guard<std::mutex> writing(writing_);
  std::lock_guard<std::mutex> lock(queue_mutex_);
  closed_ = true;
  dropped = std::exchange(queue_, {});
  bytes_ = 0;
}

}  // namespace gld::rpc

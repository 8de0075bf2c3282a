// A bounded FIFO of byte messages in shared memory, between processes of one host.
//
// The memory is one anonymous memfd: nothing has a name in /dev/shm, so however the processes end, nothing is left.
// Another process opens it as "/proc/<pid>/fd/<n>" of a process that holds it. The file is sealed against resizing,
// so no process can make another one fault on it.
//
// Producers take turns on a robust mutex; a message becomes visible by one store after it is completely written, so
// a producer that is killed while writing leaves neither half a message nor a lock. Receiving and releasing take no
// lock. Every message is contiguous and starts at a multiple of 64 bytes.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"

namespace gld {

// A point in monotonic time, or never.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  // `timeout_s` counts from now; none means never. Throws InvalidArgument where it is negative or not a number.
  explicit Deadline(std::optional<double> timeout_s);
  bool passed() const { return at_ && Clock::now() >= *at_; }
  // Time until the deadline, at least 0 and at most `most`.
  std::chrono::nanoseconds remaining(std::chrono::nanoseconds most) const;

 private:
  std::optional<Clock::time_point> at_;
};

// Called about every 100 ms while something waits; what it throws ends the wait. Lets signals through.
using Poll = std::function<void()>;

struct Bytes {
  const void* data = nullptr;
  size_t size = 0;
};

class ShmRing : public std::enable_shared_from_this<ShmRing> {
 public:
  // A received message: a view of the ring's memory, which stays reserved until release() or destruction. Messages
  // may be released in any order; their space is reused in the order they were sent. One thread at a time.
  class Message {
   public:
    Message(std::shared_ptr<ShmRing> ring, uint64_t sequence, Bytes bytes);
    ~Message() { release(); }
    Message(const Message&) = delete;
    Message& operator=(const Message&) = delete;
    // Valid until release(), which empties it.
    Bytes bytes() const { return bytes_; }
    bool released() const { return ring_ == nullptr; }
    void release();

   private:
    std::shared_ptr<ShmRing> ring_;
    uint64_t sequence_;
    Bytes bytes_;
    int32_t pid_;  // a forked child must not release what its parent still reads
  };

  // A new ring for at most `capacity_bytes` (rounded up to a page) in at most `max_messages` messages, counting those
  // that are received but not released. Several lie in the first `most_together_bytes`: a larger one waits until there
  // is no other. Memory is taken from the system when it is first written.
  static std::shared_ptr<ShmRing> create(size_t capacity_bytes, uint32_t max_messages,
                                         size_t most_together_bytes = SIZE_MAX);
  // Opens the ring of another process by its path(). Throws ChannelError where there is no such ring.
  static std::shared_ptr<ShmRing> open(const std::string& path);
  ~ShmRing();
  ShmRing(const ShmRing&) = delete;
  ShmRing& operator=(const ShmRing&) = delete;

  // Copies the parts into one message. Waits for room. Throws MessageTooLarge where it can never fit, ChannelTimeout,
  // ChannelClosed (also where the consumer's process is gone), ChannelError where the system has no memory left.
  void send(const std::vector<Bytes>& parts, const Deadline& deadline, const Poll& poll);
  // The next message in the order sent. Throws ChannelTimeout, or ChannelClosed when it is closed and drained.
  std::unique_ptr<Message> recv(const Deadline& deadline, const Poll& poll);
  // Returns when there is a message. Throws ChannelClosed when it is closed and drained.
  void wait(const Poll& poll);
  // As recv, but null where there is none. Still throws ChannelClosed when it is closed and drained.
  std::unique_ptr<Message> try_recv();

  // No more sends, on any side; wakes everybody. What was sent can still be received. Idempotent.
  void close();
  bool closed() const;

  std::string path() const;          // valid for as long as this process keeps this object
  uint64_t pending() const;          // messages sent and not received
  uint64_t pending_bytes() const;    // their size
  uint64_t held() const;             // messages received whose space is not yet free
  uint64_t committed_bytes() const;  // memory taken from the system for messages so far
  size_t capacity_bytes() const;
  uint32_t max_messages() const;

 private:
  struct Header;
  struct Slot;
  class ProducerLock;

  ShmRing(int fd, void* memory, size_t mapped_bytes);
  Slot& slot(uint64_t sequence) const;
  bool find_space(uint64_t span, uint64_t* offset) const;
  uint64_t wait_for_space(uint64_t span, const Deadline& deadline, const Poll& poll);
  void commit(uint64_t end);
  void release(uint64_t sequence);
  std::unique_ptr<Message> pop();
  void become_consumer();
  void check_open_for_send() const;

  int fd_;
  void* memory_;
  size_t mapped_bytes_;
  Header* header_;
  const uint64_t capacity_;  // as they were when it was opened, whatever others write there
  const uint64_t most_together_;
  const uint32_t max_messages_;
  Slot* slots_;
  char* data_;
};

}  // namespace gld

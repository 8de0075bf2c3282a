// What is on its way out over one non-blocking socket.
//
// Any thread sends, one flushes (the engine's). Small messages that nothing waits before are written by the sender at
// once, without waking anybody; the memory of others is borrowed until it is with the kernel.
#pragma once
#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "rpc/frame.h"
#include "rpc/value.h"

namespace gld::rpc {

using Clock = std::chrono::steady_clock;

class Outbox {
 public:
  using Owners = std::vector<std::shared_ptr<const void>>;
  using Sources = std::deque<std::shared_ptr<Source>>;

  // The socket stays the caller's, who calls close() before closing it.
  explicit Outbox(int socket) : socket_(socket), last_progress_(Clock::now().time_since_epoch()) {}

  // Writes the parts, or queues them. True: they are with the kernel. False: their memory is borrowed until flush()
  // names `token`, or until after close(); somebody must call flush().
  bool send(uint64_t token, std::vector<iovec> parts);
  // The same of memory that is kept here until it is with the kernel: nobody is told. What the socket takes is written
  // now, however much: the caller has no interpreter. A part without memory is the next of `sources`, of its length:
  // made when it can be sent. False: somebody must call flush().
  bool send_owned(std::vector<iovec> parts, Owners owners, Sources sources);
  // Sends a frame of the engine's own, unless others wait: those say as well that this side is alive. False: somebody
  // must call flush().
  bool send_control(const ControlFrame& frame);

  enum class State { kEmpty, kBlocked, kBroken };
  // Writes until nothing is left or the socket takes no more; adds the tokens of what is complete to `sent`.
  // kBroken leaves the reason in errno.
  State flush(std::vector<uint64_t>& sent);
  // Drops what is queued, and never touches the socket again, nor borrowed memory.
  void close();

  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  // When the socket last took something.
  Clock::time_point last_progress() const { return Clock::time_point(last_progress_.load(std::memory_order_relaxed)); }

 private:
  struct Message {
    uint64_t token;  // 0: nobody is told
    std::vector<iovec> parts;
    size_t next = 0;              // the first part that is not written yet
    Owners owners;                // of the parts' memory, where the caller does not keep it
    Sources sources;              // of the parts that are not made yet
    size_t made = 0;              // bytes of the first of them that are
    std::shared_ptr<void> block;  // the last of these
    size_t block_bytes = 0;       // that fit there
  };
  static size_t num_ready(Message& message);
  bool send_or_queue(Message message, size_t immediate_bytes);
  size_t write(const iovec* parts, size_t count);
  // Adds what is complete to `done`: it dies without a lock, as what it holds may be Python's.
  void advance(size_t bytes, std::vector<Message>& done);

  const int socket_;
  std::mutex writing_;  // held across system calls; taken before queue_mutex_
  std::mutex queue_mutex_;
  bool closed_ = false;
  std::deque<Message> queue_;
  std::atomic<size_t> bytes_{0};
  std::atomic<Clock::duration> last_progress_;
};

}  // namespace gld::rpc

// Sockets driven by one thread that needs no interpreter: it frames, receives into pooled memory, sends from borrowed
// memory, answers and sends heartbeats, and holds back a peer that sends more than is taken.
//
// The other side is one event loop: it calls the methods, and asks poll() for what happened whenever fd() can be read.
// Other threads may send, and wait for answers.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "rpc/answers.h"
#include "rpc/frame.h"
#include "rpc/heartbeat.h"
#include "rpc/outbox.h"

namespace gld::rpc {

struct EngineSettings {
  double heartbeat_interval_s = 1.0;
  double heartbeat_timeout_s = 3.0;
  uint64_t max_payload_bytes = uint64_t{4} << 30;  // once a stream's limits are lifted
};

class Engine;
struct Mailbox;

// One socket's frames, both ways. Until its limits are lifted only small frames without payload may come, one at a
// time, and there are no heartbeats.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  const uint64_t id;

  // Sends a message; see Outbox::send. Where it gives false, the memory is borrowed until an event names the token
  // or says that the stream is closed.
  bool send(uint64_t token, std::vector<iovec> parts);
  // Frames of so many bytes (see Frame::bytes) have been dealt with: others may come in their place.
  void taken(size_t bytes);
  // The peer is known.
  void lift_limits();
  // What is queued is dropped. An event tells when the socket is closed. Idempotent.
  void close();
  // Bytes that wait to be sent.
  size_t out_bytes() const { return outbox_.bytes(); }

  // A thread that waits for the answer to a request gets it from the engine's thread; no event tells of it. An answer
  // comes by an event all the same where frames before it are untaken, whose order would be lost, or where its payload
  // lies in shared memory; then somebody must release the thread. See Answers.
  void expect_answer(uint64_t request_id) { answers_.expect(request_id); }
  std::optional<Frame> await_answer(uint64_t request_id, Clock::time_point deadline,
                                    const std::function<void()>& check_signals);
  void forget_answer(uint64_t request_id) { answers_.take(request_id); }
  bool release_answer(uint64_t request_id) { return answers_.release(request_id); }

 private:
  friend class Engine;
  enum class State { kNew, kOpen, kClosed };
  Stream(std::shared_ptr<Mailbox> mailbox, const EngineSettings& settings, uint64_t id, int socket);
  bool may_deliver();
  bool is_closing();
  size_t credit() const;
  bool hand_over(Frame& frame);

  const std::shared_ptr<Mailbox> mailbox_;
  const int socket_;
  Outbox outbox_;
  Answers answers_;
  const bool is_tcp_;

  std::mutex mutex_;  // of what follows
  size_t untaken_ = 0;
  bool is_paused_ = false;  // too much is untaken
  bool is_known_ = false;   // the limits are lifted
  bool is_closing_ = false;

  // The engine's thread only.
  State state_ = State::kNew;
  FrameDecoder decoder_;
  Heartbeat heartbeat_;
  Clock::time_point last_received_;
  uint32_t interest_ = 0;  // what epoll looks for; 0: it is not in epoll
  bool reads_ = true;      // false: paused, or malformed
  bool beats_ = false;     // the limits were lifted
  bool is_malformed_ = false;
  bool is_blocked_ = false;  // the socket takes no more for now
  int least_bytes_ = 1;      // for which the socket counts as readable
};

// What happened to a stream.
struct Event {
  enum class What {
    kFrame,      // a frame came
    kSent,       // the memory of a message is needed no more
    kMalformed,  // the peer broke the protocol; nothing more is read
    kMismatch,   // it speaks another version
    kClosed,     // the socket is closed, and all memory is given back; nothing follows
  };
  uint64_t stream = 0;
  What what = What::kClosed;
  Frame frame;
  uint64_t token = 0;
  std::string text;  // why; of kClosed nothing where this side closed it
};

class Engine {
 public:
  // Starts the thread. Throws std::system_error.
  explicit Engine(const EngineSettings& settings);
  // In a process forked from the engine's own there is no thread, and nothing is touched.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Drives a connected socket, owned from here on. Throws InvalidArgument once closed.
  std::shared_ptr<Stream> open(int socket);
  // Becomes readable when poll() has something to tell.
  int fd() const;
  // What happened since the last call, in order for each stream.
  std::vector<Event> poll();
  // Closes all streams and ends the thread; poll() tells the last events. Idempotent.
  void close();

 private:
  void run();
  void attend();
  void look_after(Stream& stream);
  void handle(Stream& stream, uint32_t events);
  void receive(Stream& stream);
  void expect(Stream& stream);
  bool deliver(Stream& stream);
  void take_frame(Stream& stream, Frame frame);
  void flush(Stream& stream);
  void update_interest(Stream& stream);
  void tick(Clock::time_point now);
  void finish(Stream& stream, const std::string& why);
  void publish();
  void stop();

  const EngineSettings settings_;
  const pid_t owner_;
  std::shared_ptr<Mailbox> mailbox_;
  std::thread thread_;
  uint64_t next_id_ = 1;

  // The engine's thread only.
  int epoll_ = -1;
  std::unordered_map<uint64_t, std::shared_ptr<Stream>> streams_;
  std::vector<Event> fresh_;
  Clock::time_point next_tick_;
};

}  // namespace gld::rpc

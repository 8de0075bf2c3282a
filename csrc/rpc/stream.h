// One socket's frames, both ways.
//
// Three may read it, one at a time: the loop, which hands on small frames without another thread in between; the
// engine's thread, which receives large payloads without the interpreter, and for a while whatever follows them; and
// one of the threads that wait for an answer, from begin_waiting() to end_waiting(). Whoever reads tells the loop of
// what is the loop's, in the order in which it came. Queries and their answers go elsewhere (query_server.h,
// query_client.h): a stream that has some is read by the engine's thread, which never waits for the interpreter.
#pragma once
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rpc/answers.h"
#include "rpc/frame.h"
#include "rpc/frame_bytes.h"
#include "rpc/heartbeat.h"
#include "rpc/lending.h"
#include "rpc/mailbox.h"
#include "rpc/outbox.h"
#include "rpc/query_client.h"
#include "rpc/query_server.h"
#include "rpc/value.h"

namespace gld::rpc {

struct EngineSettings {
  double heartbeat_interval_s = 1.0;
  double heartbeat_timeout_s = 3.0;
  uint64_t max_payload_bytes = uint64_t{4} << 30;  // once a stream's limits are lifted
};

// Who takes the frames that need no interpreter.
struct Queries {
  std::shared_ptr<QueryServer> server;
  std::shared_ptr<QueryClient> client;
};

Clock::duration seconds(double count);

// Until its limits are lifted only small frames without payload may come, one at a time, and there are no heartbeats.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  const uint64_t id;
  // Whether this is the process that opened it. A fork has a copy and the socket, and sends nothing: that would go out
  // as if it were its parent's. Locks may be those of threads that did not come along.
  bool is_here() const { return getpid() == owner_; }

  // Sends a message; see Outbox::send. Where it gives false, the memory is borrowed until an event names the token
  // or says that the stream is closed.
  bool send(uint64_t token, std::vector<iovec> parts);
  // Sends a frame, and segments of its payload behind it, each padded. Nothing is to be kept.
  void send_owned(std::string frame, std::vector<Segment> segments);
  // The same of an answer that may be lent: then its payload stays where it is. The first that might be if the peer had
  // its region has the loop told of it.
  void send_answer(Header header, OutgoingValue value);
  Lending& lending() { return lending_; }
  // Nothing new is lent from a region: what was lent before is on its way when this returns, so that what is sent now
  // comes behind it.
  void forget_region(uint64_t region);
  // Gives back what the peer lent by an answer.
  void give_back(std::pair<uint64_t, uint64_t> place);
  // Answers of queries whose payload is lent, in the peer's region of that number, and that nobody has read or given
  // back.
  int64_t lent_here(uint64_t region);
  void count_lent_here(uint64_t region, int64_t change);
  // The same of a query, whose answer is expected.
  void send_query(std::string frame, std::vector<Segment> segments);
  // Frames of so many bytes (see Frame::bytes) have been dealt with: others may come in their place.
  void taken(size_t bytes);
  // The peer is known, by a key that no other has, and takes payloads of so many bytes; those of at least so many may
  // be lent to it.
  void lift_limits(uint64_t peer_limit_bytes = UINT64_MAX, std::string peer_key = {},
                   uint64_t least_lent_bytes = UINT64_MAX);
  // Nothing before the limits are lifted.
  std::string_view peer_key() const { return has_key_ ? std::string_view(peer_key_) : std::string_view(); }
  bool is_tcp() const { return is_tcp_; }
  uint64_t peer_limit_bytes() const { return peer_limit_bytes_.load(std::memory_order_relaxed); }
  // What is queued is dropped, but for what the socket takes at once. An event tells when the socket is closed.
  // Idempotent.
  void close();
  // Bytes that wait to be sent.
  size_t out_bytes() const { return outbox_.bytes(); }
  // An event tells, once, when no more than so many wait to be sent.
  void tell_when_below(size_t bytes);
  // Nothing more is received or sent.
  bool is_closed() const { return is_closed_; }
  // Sends a frame of the engine's own; see Outbox::send_control.
  bool send_control(const ControlFrame& frame);
  // Queries that came and went since it opened.
  uint64_t queries_served() const { return queries_served_.load(std::memory_order_relaxed); }
  // Frames that came and went since then; what is queued has gone.
  const FrameBytes& received() const { return received_; }
  const FrameBytes& sent() const { return sent_; }
  uint64_t queries_sent() const { return queries_sent_.load(std::memory_order_relaxed); }

  // A thread that waits for the answer to a request reads it itself, or gets it from who reads; no event tells of it.
  // An answer comes by an event all the same where frames before it are untaken, whose order would be lost, or where
  // its payload lies in the peer's arena; then somebody must release the thread. See Answers.
  void expect_answer(uint64_t request_id) { answers_.expect(request_id); }
  std::optional<Frame> await_answer(uint64_t request_id, Clock::time_point deadline,
                                    const std::function<void()>& check_signals);
  void forget_answer(uint64_t request_id) { answers_.take(request_id); }
  bool release_answer(uint64_t request_id);

 private:
  friend class Engine;
  enum class Reader {
    kNobody,  // not begun, too much is untaken, malformed, or at its end
    kLoop,
    kEngine,
    kWaiter,
  };
  Stream(std::shared_ptr<Mailbox> mailbox, const Queries& queries, const EngineSettings& settings, uint64_t id,
         int socket);

  // The engine's thread.
  // Begins to read, or goes on if it may again; why that is over, or nothing.
  std::string go_on();
  Heartbeat::Verdict beat(Clock::time_point now, bool forgive);
  void shut();
  bool is_closing();
  // Whether somebody is to hear, now and not again, that so few bytes wait to be sent.
  bool has_room_to_tell();
  bool is_engines();  // reader
  // Reads what is there, if it is this one's turn; the engine's thread may, whoever's turn it is. Whether it is (still)
  // this one's turn.
  bool read_as(Reader reader);

  // With receiving_ held.
  void receive(bool by_loop);
  Reader deliver(std::vector<Event>& fresh, Reader reader);
  void take_frame(Frame frame, std::vector<Event>& fresh);
  bool take_query_frame(Frame& frame);
  void give_to(Reader next);
  void expect();

  void read_until_settled(uint64_t request_id, Clock::time_point deadline, const std::function<void()>& check_signals);
  bool begin_waiting();
  void end_waiting();
  bool may_deliver();
  size_t credit() const;
  bool hand_over(Frame& frame);

  const pid_t owner_;
  const std::shared_ptr<Mailbox> mailbox_;
  const Queries queries_;
  const int socket_;
  const uint64_t max_payload_bytes_;
  const bool is_tcp_;
  Outbox outbox_;
  Answers answers_;

  std::atomic<uint64_t> peer_limit_bytes_{0};
  std::string peer_key_;  // not changed once it is known
  std::atomic<bool> has_key_{false};
  std::atomic<uint64_t> least_lent_bytes_{UINT64_MAX};
  std::mutex borrowing_;                   // of what follows
  std::map<uint64_t, int64_t> lent_here_;  // by region
  Lending lending_;
  std::mutex answering_;  // held from lending something until it is on its way
  std::atomic<uint64_t> queries_served_{0}, queries_sent_{0};
  FrameBytes received_, sent_;
  std::atomic<bool> has_queries_{false};  // then the engine's thread reads
  std::atomic<bool> is_closed_{false};
  std::atomic<int64_t> told_below_{-1};  // see tell_when_below; -1: nobody wants to hear

  std::mutex mutex_;  // of what follows
  size_t untaken_ = 0;
  bool is_paused_ = false;  // too much is untaken
  bool is_known_ = false;   // the limits are lifted
  bool is_closing_ = false;

  std::mutex receiving_;  // of what follows; taken before mutex_
  Reader reader_ = Reader::kNobody;
  FrameDecoder decoder_;
  Heartbeat heartbeat_;
  Clock::time_point last_received_;
  bool beats_ = false;  // the limits were lifted
  bool is_malformed_ = false;
  bool is_busy_ = false;  // a large payload came since the last beat, or several threads waited
  bool is_shut_ = false;  // the socket is closed, or will be by the thread that polls it
  std::string end_;       // why nothing can be received any more
  int least_bytes_ = 1;   // for which the socket counts as readable

  std::unique_ptr<const Bell> to_waiter_;  // made before a thread first polls
  std::atomic<bool> is_polled_{false};     // by a thread that waits, whosever turn it is to read

  // The engine's thread only.
  enum class State { kNew, kOpen, kClosed };
  State state_ = State::kNew;
  uint32_t interest_ = 0;    // what epoll looks for; 0: it is not in epoll
  bool is_blocked_ = false;  // the socket takes no more for now
};

}  // namespace gld::rpc

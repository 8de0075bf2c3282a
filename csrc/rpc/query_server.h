// Answers queries of peers without the interpreter, by turns of the connections that they came by.
#pragma once
#include <sys/types.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rpc/frame.h"
#include "rpc/outbox.h"
#include "rpc/value.h"

namespace gld::rpc {

class Stream;
class StreamReply;

struct QueryServerSettings {
  int num_threads = 2;
  size_t max_waiting = 256;                 // queries of one connection; who sends more is told to try again
  size_t max_out_bytes = size_t{64} << 20;  // queued for a connection: its queries wait while there is more
  std::string own_name = "this side";       // for messages
};

// All methods may be called from any thread; take() to closed() are for streams and their engine, and do not block.
class QueryServer : public std::enable_shared_from_this<QueryServer> {
 public:
  explicit QueryServer(QueryServerSettings settings) : settings_(std::move(settings)), owner_(getpid()) {}
  // In a process forked from its own there are no threads, and nothing is touched.
  ~QueryServer();
  QueryServer(const QueryServer&) = delete;
  QueryServer& operator=(const QueryServer&) = delete;

  // Has `answerer` answer what is asked of `service`, in place of what did before; null: nobody.
  void serve(const std::string& service, std::shared_ptr<Answerer> answerer);

  // A query came. Where its caller gave a deadline and that passes before its turn, it is dropped.
  void take(const std::shared_ptr<Stream>& stream, Frame frame);
  // Nobody waits for it any more.
  void cancel(uint64_t stream, uint64_t request_id);
  // A connection sent something of what was queued.
  void flushed(uint64_t stream);
  void closed(uint64_t stream);
  // Ends the threads; what waits is dropped. Idempotent.
  void stop();

 private:
  struct Waiting {
    Frame frame;
    Clock::time_point deadline;
  };
  struct Line {  // the queries of one connection
    std::shared_ptr<Stream> stream;
    std::deque<Waiting> waiting;
    bool has_turn = false;   // it stands among turns_
    bool is_parked = false;  // its peer does not take what it was sent
    bool is_busy = false;    // one of its queries is looked at, or begun where those keep their order
  };
  void start_threads();
  void run();
  // Whether others of the line go on already.
  bool answer(const std::shared_ptr<Line>& line, const Waiting& query);
  void go_on(const std::shared_ptr<Line>& line);
  friend class StreamReply;
  void answered(uint64_t stream, uint64_t request_id);
  std::shared_ptr<Answerer> answerer_of(std::string_view meta);
  void queue_turn(const std::shared_ptr<Line>& line);

  const QueryServerSettings settings_;
  const pid_t owner_;
  std::mutex mutex_;  // of what follows
  std::condition_variable has_work_;
  std::map<std::string, std::shared_ptr<Answerer>, std::less<>> services_;
  std::unordered_map<uint64_t, std::shared_ptr<Line>> lines_;
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<StreamReply>> under_way_;  // by stream and request id
  std::deque<std::shared_ptr<Line>> turns_;
  std::vector<std::thread> threads_;
  bool is_stopping_ = false;
};

}  // namespace gld::rpc

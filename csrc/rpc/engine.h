// Sockets that need no interpreter: they are framed, received into pooled memory and sent from borrowed memory;
// heartbeats are answered and sent, and a peer that sends more than is taken is held back.
//
// One event loop calls the methods, and asks poll() for what happened whenever fd() can be read; then poll() itself
// reads what is small. A thread of the engine's own does all that is large or late. Other threads may send, and wait
// for answers.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "rpc/mailbox.h"
#include "rpc/stream.h"

namespace gld::rpc {

class Engine {
 public:
  // Starts the thread. Throws std::system_error.
  explicit Engine(const EngineSettings& settings, QueryServerSettings for_queries = {});
  // In a process forked from the engine's own there is no thread, and nothing is touched.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Drives a connected socket, owned from here on. Throws InvalidArgument once closed.
  std::shared_ptr<Stream> open(int socket);
  // What answers queries of peers, and what asks them; they may be used as long as they are held.
  const Queries& queries() const { return queries_; }
  // Becomes readable when poll() has something to tell.
  int fd() const;
  // Reads, and gives what happened since the last call, in order for each stream.
  std::vector<Event> poll();
  // Closes all streams and ends the thread; poll() tells the last events. Idempotent.
  void close();

 private:
  void run();
  void attend();
  void look_after(Stream& stream);
  Outbox::State write(Stream& stream);
  void flush(Stream& stream);
  void update_interest(Stream& stream);
  void tick(Clock::time_point now, bool is_late);
  void finish(Stream& stream, const std::string& why);
  void stop();

  const EngineSettings settings_;
  const pid_t owner_;
  std::shared_ptr<Mailbox> mailbox_;
  const Queries queries_;
  std::thread thread_;

  // The loop's thread only.
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::shared_ptr<Stream>> opened_;

  // The engine's thread only.
  int epoll_ = -1;
  std::unordered_map<uint64_t, std::shared_ptr<Stream>> streams_;
  std::vector<Event> fresh_;
  Clock::time_point next_tick_;
};

}  // namespace gld::rpc

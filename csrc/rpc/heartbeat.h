// Whether the peer at the other end of a connection still lives. A pure function of times; graphlearn_dist/rpc/
// heartbeat.py is the same for the engine in Python.
#pragma once
#include <chrono>
#include <cstddef>
#include <string>

namespace gld::rpc {

class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  // A peer that takes no data for so long is given up, though it may send.
  static constexpr std::chrono::seconds kStuck{30};

  Heartbeat(Clock::duration interval, Clock::duration timeout, Time now)
      : interval_(interval), timeout_(timeout), alive_(now), last_ping_(now) {}

  struct Verdict {
    bool ping = false;
    std::string dead;  // why, or nothing
  };
  // To be asked a few times per interval.
  //   last_received, last_sent: when bytes last came, and when the socket last took some.
  //   backlog: bytes that wait to be sent.
  Verdict check(Time now, Time last_received, Time last_sent, size_t backlog);

  // The silence is this side's own: it was stopped, or does not read.
  void forgive(Time now) { alive_ = now; }

 private:
  Clock::duration interval_, timeout_;
  Time alive_, last_ping_;
  bool had_backlog_ = false;
};

}  // namespace gld::rpc

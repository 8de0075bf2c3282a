#include "rpc/heartbeat.h"

#include <algorithm>
#include <cmath>

#include "common/error.h"

namespace gld::rpc {

Heartbeat::Verdict Heartbeat::check(Time now, Time last_received, Time last_sent, size_t backlog) {
  // Bytes that a backlogged socket takes are a sign of life as good as bytes that arrive.
  alive_ = std::max({alive_, last_received, had_backlog_ ? last_sent : Time::min()});
  had_backlog_ = backlog > 0;
  const Clock::duration silence = now - alive_;
  Verdict verdict;
  if (silence > timeout_) {
    const double seconds = std::chrono::duration<double>(silence).count();
    verdict.dead = message("heartbeat timeout: silent for ", std::round(seconds * 10) / 10, " s");
  } else if (had_backlog_ && now - last_sent > kStuck) {
    verdict.dead = message("it took no data for ", kStuck.count(), " s");
  } else if (std::min(silence, now - last_ping_) > interval_) {
    verdict.ping = true;
    last_ping_ = now;
  }
  return verdict;
}

}  // namespace gld::rpc

#include "common/pulse.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "common/signals_blocked.h"

namespace gld {
namespace {

void beat(int descriptor, std::chrono::milliseconds interval, char mark) {
  pollfd other_end{descriptor, 0, 0};  // no event but its closing
  int events = 0;
  while (events == 0) {
    if (::write(descriptor, &mark, 1) < 0) return;
    events = ::poll(&other_end, 1, static_cast<int>(interval.count()));
  }
}

}  // namespace

void start_pulse(int descriptor, std::chrono::milliseconds interval, char mark) {
  const SignalsBlocked blocked;  // SIGPIPE too, and nothing interrupts the calls above
  std::thread(beat, descriptor, interval, mark).detach();
}

}  // namespace gld

#include "channel/process_id.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

namespace gld {
namespace {

constexpr int kPidBits = 22;                              // the kernel's PID_MAX_LIMIT
constexpr long kPidfdSendSignal = 424, kPidfdOpen = 434;  // on all machines alike; older headers have no names for them

// Start time in clock ticks since boot, or 0 where the process has ended.
uint64_t start_ticks(int pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return 0;
  char text[1024];
  const size_t length = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  text[length] = '\0';
  const char* field = std::strrchr(text, ')');  // the command's name may hold blanks and brackets
  if (field == nullptr || field + 2 >= text + length) return 0;
  field += 2;  // now at field 3, the state
  if (*field == 'Z' || *field == 'X') return 0;
  for (int number = 3; number < 22 && field != nullptr; ++number) {
    field = std::strchr(field, ' ');
    if (field != nullptr) ++field;
  }
  return field == nullptr ? 0 : std::strtoull(field, nullptr, 10);
}

}  // namespace

uint64_t current_process_id() {
  const int pid = static_cast<int>(getpid());
  return (start_ticks(pid) << kPidBits) | static_cast<uint64_t>(pid);
}

int pid_of(uint64_t process_id) { return static_cast<int>(process_id & ((uint64_t{1} << kPidBits) - 1)); }

bool process_is_alive(uint64_t process_id) {
  const uint64_t started = start_ticks(pid_of(process_id));
  return started != 0 && started == process_id >> kPidBits;
}

int open_process(int pid) {
  const auto fd = static_cast<int>(syscall(kPidfdOpen, pid, 0));  // closed on exec
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "pidfd_open");
  return fd;
}

void kill_process(int fd) {
  if (syscall(kPidfdSendSignal, fd, SIGKILL, nullptr, 0) != 0)
    throw std::system_error(errno, std::generic_category(), "pidfd_send_signal");
}

}  // namespace gld

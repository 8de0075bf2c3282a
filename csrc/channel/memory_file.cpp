#include "channel/memory_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#ifndef SYS_memfd_create
#if defined(__x86_64__)
#define SYS_memfd_create 319
#elif defined(__aarch64__)
#define SYS_memfd_create 279
#else
#error "the kernel's headers are older than Linux 3.17"
#endif
#endif

namespace gld {
namespace {

// Of the kernel's interface, which headers of before Linux 3.17 do not have.
constexpr unsigned kCloseOnExec = 1, kAllowSealing = 2;
constexpr int kAddSeals = 1033, kGetSeals = 1034;
constexpr int kSealSeal = 1, kSealShrink = 2, kSealGrow = 4;

[[noreturn]] void fail(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

}  // namespace

int create_memory_file(const char* name, uint64_t bytes) {
  const int fd = static_cast<int>(syscall(SYS_memfd_create, name, kCloseOnExec | kAllowSealing));
  if (fd < 0) fail("memfd_create");
  const char* failed = nullptr;
  if (fchmod(fd, S_IRUSR | S_IWUSR) != 0)
    failed = "fchmod";
  else if (ftruncate(fd, static_cast<off_t>(bytes)) != 0)
    failed = "ftruncate";
  else if (fcntl(fd, kAddSeals, kSealShrink | kSealGrow | kSealSeal) != 0)
    failed = "fcntl";
  if (failed != nullptr) {
    const int code = errno;
    close(fd);
    errno = code;
    fail(failed);
  }
  return fd;
}

bool has_fixed_size(int fd) {
  const int seals = fcntl(fd, kGetSeals);
  if (seals < 0) fail("fcntl");
  return (seals & kSealShrink) != 0 && (seals & kSealGrow) != 0;
}

}  // namespace gld

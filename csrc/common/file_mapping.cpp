#include "common/file_mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "common/huge_pages.h"

namespace gld {
namespace {

char* map(void* at, size_t nbytes, int protection, int flags, int fd, uint64_t offset) {
  void* const mapped = ::mmap(at, nbytes, protection, flags, fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  return static_cast<char*>(mapped);
}

void unmap(char* begin, size_t nbytes) {
  if (nbytes > 0) ::munmap(begin, nbytes);
}

}  // namespace

FileMapping::FileMapping(int fd, uint64_t offset, size_t nbytes, bool is_shared) : nbytes_(nbytes) {
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  const int flags = is_shared ? MAP_SHARED : MAP_PRIVATE;
  const size_t huge = huge_page_bytes();
  if (huge == 0 || nbytes < huge) {
    begin_ = map(nullptr, nbytes, kProtection, flags, fd, offset);
    return;
  }
  // Of a range that is a huge page longer, the part whose addresses are offsets but for whole huge pages.
  const size_t reserved = nbytes + huge;
  char* const range = map(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const size_t before = (offset - reinterpret_cast<uintptr_t>(range)) % huge;
  try {
    begin_ = map(range + before, nbytes, kProtection, flags | MAP_FIXED, fd, offset);
  } catch (...) {
    unmap(range, reserved);
    throw;
  }
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t mapped = (nbytes + page - 1) / page * page;
  unmap(range, before);
  unmap(range + before + mapped, reserved - before - mapped);
}

FileMapping::~FileMapping() { unmap(begin_, nbytes_); }

}  // namespace gld

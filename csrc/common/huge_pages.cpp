#include "common/huge_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace gld {
namespace {

constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack

// Bits of an entry of /proc/self/pagemap, see proc_pid_pagemap(5).
constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kSwapped = uint64_t{1} << 62;
constexpr uint64_t kFileOrShared = uint64_t{1} << 61;
constexpr uint64_t kExclusive = uint64_t{1} << 56;

std::string read_text(const std::string& name) {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t find_huge_page_bytes() {
  const std::string enabled = read_text("enabled");
  if (enabled.empty() || enabled.find("[never]") != std::string::npos) return 0;
  return std::strtoull(read_text("hpage_pmd_size").c_str(), nullptr, 10);
}

class PageMap {
 public:
  PageMap() : descriptor_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}
  ~PageMap() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  // Whether entries of the pages from an address on could be had, as many as there is room for.
  bool read(uintptr_t begin, size_t page, std::vector<uint64_t>& entries) const {
    const size_t nbytes = entries.size() * sizeof(uint64_t);
    const auto at = static_cast<off_t>(begin / page * sizeof(uint64_t));
    return descriptor_ >= 0 && ::pread(descriptor_, entries.data(), nbytes, at) == static_cast<ssize_t>(nbytes);
  }

 private:
  const int descriptor_;
};

bool can_be_moved(uint64_t entry) {
  if ((entry & kSwapped) != 0) return false;
  return (entry & kPresent) == 0 || (entry & (kFileOrShared | kExclusive)) != 0;
}

// Whether these pages are this process's alone or shared memory, and most of them have been written or read.
bool can_be_moved(const std::vector<uint64_t>& entries) {
  if (!std::all_of(entries.begin(), entries.end(), [](uint64_t entry) { return can_be_moved(entry); })) return false;
  const auto present =
      std::count_if(entries.begin(), entries.end(), [](uint64_t entry) { return (entry & kPresent) != 0; });
  return 2 * static_cast<size_t>(present) > entries.size();
}

}  // namespace

size_t huge_page_bytes() {
  static const size_t bytes = find_huge_page_bytes();
  return bytes;
}

size_t move_to_huge_pages(uintptr_t begin, size_t nbytes) {
  const size_t huge = huge_page_bytes();
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  if (huge <= page) return 0;
  const PageMap page_map;
  std::vector<uint64_t> entries(huge / page);
  const uintptr_t end = (begin + nbytes) / huge * huge;
  size_t moved = 0;
  // Each call waits for all cores of the system once, so that one takes as much as it may.
  for (uintptr_t at = (begin + huge - 1) / huge * huge; at < end;) {
    uintptr_t run_end = at;
    while (run_end < end && page_map.read(run_end, page, entries) && can_be_moved(entries)) run_end += huge;
    if (run_end > at && ::madvise(reinterpret_cast<void*>(at), run_end - at, kCollapse) == 0) moved += run_end - at;
    at = run_end + huge;
  }
  return moved;
}

}  // namespace gld

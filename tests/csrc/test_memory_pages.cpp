// Files in memory where they are mapped, and moves to huge pages beside threads that read and write.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <system_error>
#include <thread>
#include <vector>

#include "channel/memory_file.h"
#include "check.h"
#include "common/file_mapping.h"
#include "common/huge_pages.h"

namespace gld::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

struct File {
  explicit File(uint64_t bytes) : fd(create_memory_file("test", bytes)) {}
  ~File() { ::close(fd); }
  const int fd;
};

int64_t* numbers(const FileMapping& mapping) { return reinterpret_cast<int64_t*>(mapping.data()); }

uintptr_t address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

TEST("file mapping: where pages of the file can be huge, whatever its size and offset") {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const File file(9 * kMiB + 5);
  for (const uint64_t offset : {uint64_t{0}, page, 3 * kMiB, 5 * kMiB - page}) {
    std::vector<std::unique_ptr<FileMapping>> kept;  // so that each is somewhere else
    for (size_t nbytes : {size_t{1}, 2 * kMiB, 4 * kMiB + 5}) {
      kept.push_back(std::make_unique<FileMapping>(file.fd, offset, nbytes, true));
      const FileMapping& mapping = *kept.back();
      CHECK_EQUAL(mapping.size(), nbytes);
      mapping.data()[nbytes - 1] = 7;
      if (huge_page_bytes() > 0 && nbytes >= huge_page_bytes())
        CHECK_EQUAL((address(mapping.data()) - offset) % huge_page_bytes(), uint64_t{0});
    }
  }
}

TEST("file mapping: what is written to a private one is nobody else's") {
  const File file(4 * kMiB);
  const FileMapping shared(file.fd, 0, 4 * kMiB, true), mine(file.fd, 0, 4 * kMiB, false);
  numbers(shared)[0] = 1;
  CHECK_EQUAL(numbers(mine)[0], int64_t{1});
  numbers(mine)[1] = 2;
  CHECK_EQUAL(numbers(shared)[1], int64_t{0});
  CHECK_THROWS(std::system_error, FileMapping(file.fd, 1, 4 * kMiB, true));
  CHECK_THROWS(std::system_error, FileMapping(-1, 0, 4 * kMiB, true));
  CHECK_THROWS(std::system_error, FileMapping(file.fd, 0, 0, true));
}

TEST("huge pages: values stay while they are read and written, shared and private") {
  const File file(16 * kMiB);
  const FileMapping shared(file.fd, 0, 16 * kMiB, true), also(file.fd, 0, 16 * kMiB, false);
  const FileMapping written(file.fd, 0, 16 * kMiB, false);  // has pages of its own
  const int64_t count = 2 * kMiB;
  std::iota(numbers(shared), numbers(shared) + count, int64_t{0});
  for (int64_t i = 0; i < count; i += 1024) numbers(written)[i] = -i;
  std::atomic<bool> stopped{false};
  std::atomic<int64_t> wrong{0}, rounds{0};
  std::thread reader([&] {
    while (!stopped)
      for (int64_t i = 1; i < count; i += 511) wrong += numbers(also)[i] != i;
  });
  std::thread writer([&] {
    while (!stopped || rounds == 0) {
      for (int64_t i = 0; i < count; i += 1024) numbers(written)[i] -= 1;
      ++rounds;
    }
  });
  for (const FileMapping* one : {&shared, &also, &written})
    CHECK(move_to_huge_pages(address(one->data()), one->size()) <= one->size());
  stopped = true;
  reader.join();
  writer.join();
  CHECK_EQUAL(wrong.load(), int64_t{0});
  for (int64_t i = 0; i < count; ++i) {
    if (numbers(shared)[i] != i) ++wrong;
    if (numbers(written)[i] != (i % 1024 == 0 ? -i - rounds : i)) ++wrong;
  }
  CHECK_EQUAL(wrong.load(), int64_t{0});
}

TEST("huge pages: ranges that hold none, or are gone, are no error") {
  CHECK_EQUAL(move_to_huge_pages(0, 0), size_t{0});
  void* const memory = ::mmap(nullptr, 8 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  CHECK_EQUAL(move_to_huge_pages(address(memory), 8 * kMiB), size_t{0});  // nothing was written
  std::memset(memory, 1, 8 * kMiB);
  CHECK_EQUAL(move_to_huge_pages(address(memory) + 1, 1), size_t{0});
  CHECK(move_to_huge_pages(address(memory), 8 * kMiB) <= 8 * kMiB);
  ::munmap(memory, 8 * kMiB);
  CHECK_EQUAL(move_to_huge_pages(address(memory), 8 * kMiB), size_t{0});
}

}  // namespace
}  // namespace gld::test

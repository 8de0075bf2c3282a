// Rows behind a cache of bounded size: the same as in memory, read once where they are announced, and never hanging.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <future>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <thread>

#include "arrays.h"
#include "check.h"
#include "feature/disk_rows.h"
#include "feature/gather.h"

namespace gld::test {
namespace {

// A file of int64 rows: element j of row r is r * width + j. It has `offset` other bytes in front.
class RowsOnDisk {
 public:
  RowsOnDisk(int64_t num_rows, int64_t width, int64_t offset) : width_(width) {
    file_ = mkstemp(path_.data());
    std::vector<int64_t> numbers(static_cast<size_t>(num_rows * width));
    std::iota(numbers.begin(), numbers.end(), 0);
    bool is_written = ftruncate(file_, offset) == 0;
    const auto count = static_cast<ssize_t>(numbers.size() * sizeof(int64_t));
    is_written = is_written && pwrite(file_, numbers.data(), static_cast<size_t>(count), offset) == count;
    CHECK(is_written && fsync(file_) == 0);
    described_ = {path_, offset, num_rows, width * static_cast<int64_t>(sizeof(int64_t))};
  }
  ~RowsOnDisk() {
    close(file_);
    unlink(path_.c_str());
  }
  RowsOnDisk(const RowsOnDisk&) = delete;
  RowsOnDisk& operator=(const RowsOnDisk&) = delete;

  std::shared_ptr<DiskRows> open(int64_t num_cached, ReadFunction read = nullptr, double timeout_s = 60) const {
    // Twice a row and its tables: rounding of the tables makes it more slots or fewer.
    return DiskRows::open(described_, {num_cached * (described_.row_bytes + 100), timeout_s, std::move(read)});
  }
  RowStore store(std::shared_ptr<DiskRows> disk) const {
    Tensor shape = ids({0});
    shape.shape = {described_.num_rows, width_};  // nothing of it is read
    return make_row_store({shape}, std::move(disk));
  }
  void cut(int64_t bytes) const { CHECK(ftruncate(file_, bytes) == 0); }
  const RowFile& described() const { return described_; }
  int64_t width() const { return width_; }

 private:
  std::string path_ = "/tmp/gld_disk_rows_XXXXXX";
  int64_t width_;
  int file_ = -1;
  RowFile described_;
};

void check_rows_are(const Tensor& found, const std::vector<int64_t>& rows, int64_t width) {
  CHECK_EQUAL(found.shape[0], static_cast<int64_t>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i)
    for (int64_t j = 0; j < width; ++j) CHECK_EQUAL(found.as<int64_t>()[i * width + j], rows[i] * width + j);
}

// What reads the bytes of a file and counts how often each row of `width` numbers is among them.
struct CountedReads {
  std::shared_ptr<std::atomic<int64_t>> bytes = std::make_shared<std::atomic<int64_t>>(0);
  ssize_t operator()(int file, void* buffer, size_t count, off_t offset) const {
    const ssize_t got = pread(file, buffer, count, offset);
    if (got > 0) *bytes += got;
    return got;
  }
};

TEST("row table: as a map, through growth and erasure") {
  RowTable<int32_t> table;
  std::map<int64_t, int32_t> expected;
  const std::vector<int64_t> numbers = random_numbers(40000, 700, 5), choices = random_numbers(40000, 3, 6);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t row = numbers[i] * 4096;  // rows whose low bits say nothing
    if (choices[i] == 0) {
      table.erase(row);
      expected.erase(row);
    } else {
      const auto [value, is_new] = table.insert(row, static_cast<int32_t>(i));
      const auto [at, is_first] = expected.try_emplace(row, static_cast<int32_t>(i));
      CHECK_EQUAL(is_new, is_first);
      CHECK_EQUAL(*value, at->second);
    }
    CHECK_EQUAL(table.size(), expected.size());
  }
  for (int64_t number = 0; number < 700; ++number) {
    const auto found = expected.find(number * 4096);
    const int32_t* const value = table.find(number * 4096);
    CHECK_EQUAL(value != nullptr, found != expected.end());
    if (value != nullptr) CHECK_EQUAL(*value, found->second);
  }
}

TEST("disk rows: those of memory, whatever is cached, announced and asked for") {
  for (const int64_t width : {1, 5, 64, 131, 1500}) {
    const RowsOnDisk on_disk(900, width, 128);
    for (const int64_t cached : {int64_t{80}, int64_t{300}, int64_t{2000}}) {
      const std::shared_ptr<DiskRows> disk = on_disk.open(cached);
      const RowStore store = on_disk.store(disk);
      ThreadPool pool(2);
      for (uint64_t round = 0; round < 12; ++round) {
        const std::vector<int64_t> rows = random_numbers(400, 900, 10 + round);
        const int64_t use = round % 3 == 0 ? -1 : disk->announce(ids(rows));
        check_rows_are(gather_rows(store, ids(rows), {}, {}, pool), rows, width);
        if (round % 3 == 2) disk->announce(ids(random_numbers(300, 900, 100 + round)));  // nobody asks for these
        disk->finish(use);
      }
    }
  }
}

TEST("disk rows: in given places, cast, and of several owners") {
  const RowsOnDisk first(500, 16, 64), second(700, 16, 4096);
  const RowStore on_disk = first.store(first.open(100)), other = second.store(second.open(90));
  ThreadPool pool(2);
  const std::vector<int64_t> rows = random_numbers(3000, 500, 3);
  std::vector<int64_t> places(rows.size());
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int64_t>(places.size() - 1 - i);
  const Tensor placed = empty({3000, 16}, kInt64);
  gather_rows(on_disk, ids(rows), ids(places), placed, pool);
  std::vector<int64_t> backwards(rows.rbegin(), rows.rend());
  check_rows_are(placed, backwards, 16);

  Tensor memory = ids(random_numbers(50 * 16, 1000, 4));
  memory.shape = {50, 16};
  const RowStore in_memory = make_row_store({memory});
  const std::vector<const RowStore*> stores{&in_memory, &on_disk, nullptr, &other};
  std::vector<int32_t> owners;
  std::vector<int64_t> located = random_numbers(3000, 50, 9);
  for (const int64_t owner : random_numbers(3000, 3, 8)) owners.push_back(owner == 2 ? 3 : static_cast<int32_t>(owner));
  const Tensor out = empty({3000, 16}, kInt64);
  gather_located(stores, ids32(owners), ids(located), out, pool);
  for (size_t i = 0; i < owners.size(); ++i)
    for (int64_t j = 0; j < 16; ++j) {
      const int64_t expected = owners[i] == 0 ? memory.as<int64_t>()[located[i] * 16 + j] : located[i] * 16 + j;
      CHECK_EQUAL(out.as<int64_t>()[i * 16 + j], expected);
    }
  owners[2999] = 2;
  CHECK_THROWS(InvalidArgument, gather_located(stores, ids32(owners), ids(located), out, pool));
}

TEST("disk rows: rows of announced uses are read once while they fit, and by what is announced") {
  const RowsOnDisk on_disk(4000, 384, 0);  // a row is six blocks, more than a gap that is read along
  const CountedReads counted;
  const std::shared_ptr<DiskRows> disk = on_disk.open(600, counted);
  const RowStore store = on_disk.store(disk);
  ThreadPool pool(1);
  const int64_t before = *counted.bytes;
  // A window of four uses of 120 rows: all of its distinct rows fit.
  std::vector<std::vector<int64_t>> uses;
  for (uint64_t i = 0; i < 40; ++i) uses.push_back(random_numbers(120, 4000, 50 + i));
  std::vector<int64_t> numbers;
  std::set<int64_t> distinct;
  for (size_t i = 0; i < 4; ++i) numbers.push_back(disk->announce(ids(uses[i])));
  for (size_t i = 0; i < uses.size(); ++i) {
    check_rows_are(gather_rows(store, ids(uses[i]), {}, {}, pool), uses[i], 384);
    distinct.insert(uses[i].begin(), uses[i].end());
    disk->finish(numbers[i]);
    if (i + 4 < uses.size()) numbers.push_back(disk->announce(ids(uses[i + 4])));
  }
  // No row is read twice within a window; across windows at most once in each.
  int64_t in_windows = 0;
  for (size_t i = 0; i < uses.size(); i += 4) {
    std::set<int64_t> of_window;
    for (size_t j = i; j < i + 4; ++j) of_window.insert(uses[j].begin(), uses[j].end());
    in_windows += static_cast<int64_t>(of_window.size());
  }
  const int64_t read = (*counted.bytes - before) / (384 * 8);
  CHECK(read >= static_cast<int64_t>(distinct.size()));
  CHECK(read <= in_windows);
  CHECK_EQUAL(disk->counts().bytes, *counted.bytes - before);
}

TEST("disk rows: rows that lie close are one read") {
  const RowsOnDisk on_disk(1000, 64, 0);  // a row is a block
  ThreadPool pool(1);
  const auto bytes_for = [&](const std::vector<int64_t>& rows) {
    const RowStore store = on_disk.store(on_disk.open(100));
    check_rows_are(gather_rows(store, ids(rows), {}, {}, pool), rows, 64);
    return store.disk->counts().bytes;
  };
  const int64_t block = bytes_for({500});
  if (block != 512) return;  // a disk of larger blocks, which hold rows that are not asked for
  CHECK_EQUAL(bytes_for({10, 11}), 2 * 512);
  CHECK_EQUAL(bytes_for({15, 10}), 6 * 512);  // the four between them as well
  CHECK_EQUAL(bytes_for({10, 16}), 2 * 512);
  CHECK_EQUAL(bytes_for({0, 999}), 2 * 512);
}

// Has system calls that begin reads at once refused from now on, as some containers do.
bool refuse_aio() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(steps), steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST("disk rows: the same where the system refuses many reads at once") {
  const RowsOnDisk on_disk(3000, 40, 128);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends it if it hangs
    if (!refuse_aio()) _exit(0);
    const RowStore store = on_disk.store(on_disk.open(300));
    ThreadPool pool(1);
    int num_wrong = 0;
    for (uint64_t round = 0; round < 5; ++round) {
      const std::vector<int64_t> rows = random_numbers(1000, 3000, round);
      const Tensor found = gather_rows(store, ids(rows), {}, {}, pool);
      for (size_t i = 0; i < rows.size(); ++i) num_wrong += found.as<int64_t>()[i * 40 + 39] != rows[i] * 40 + 39;
    }
    _exit(num_wrong == 0 ? 0 : 1);
  }
  int status = 0;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST("disk rows: what is needed next stays, what is needed last goes") {
  const RowsOnDisk on_disk(1000, 64, 0);
  const std::shared_ptr<DiskRows> disk = on_disk.open(100);
  const RowStore store = on_disk.store(disk);
  ThreadPool pool(1);
  const int64_t slots = disk->num_slots();
  std::vector<int64_t> soon(static_cast<size_t>(slots / 2)), others(static_cast<size_t>(slots * 2));
  std::iota(soon.begin(), soon.end(), 0);
  std::iota(others.begin(), others.end(), slots);
  const int64_t later = disk->announce(ids(soon));
  gather_rows(store, ids(soon), {}, {}, pool);
  gather_rows(store, ids(others), {}, {}, pool);  // twice the cache, of which nobody will ask again
  const DiskRowsCounts before = disk->counts();
  gather_rows(store, ids(soon), {}, {}, pool);
  CHECK_EQUAL(disk->counts().misses, before.misses);
  disk->finish(later);
  // Known no more, they go as all others: those that were asked for often have as many turns.
  for (int turn = 0; turn < 8; ++turn) gather_rows(store, ids(others), {}, {}, pool);
  const DiskRowsCounts after = disk->counts();
  gather_rows(store, ids(soon), {}, {}, pool);
  CHECK(disk->counts().misses > after.misses);
}

TEST("disk rows: many threads, uses that end in any order") {
  const RowsOnDisk on_disk(3000, 40, 128);
  const std::shared_ptr<DiskRows> disk = on_disk.open(150);
  const RowStore store = on_disk.store(disk);
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 6; ++number)
    threads.emplace_back([&, number] {
      ThreadPool pool(1);
      std::vector<std::pair<int64_t, std::vector<int64_t>>> window;
      for (uint64_t round = 0; round < 60; ++round) {
        window.emplace_back(0, random_numbers(100, 3000, number * 1000 + round));
        window.back().first = disk->announce(ids(window.back().second));
        if (window.size() < 4) continue;
        const auto at = window.begin() + static_cast<std::ptrdiff_t>(round % window.size());
        const Tensor found = gather_rows(store, ids(at->second), {}, {}, pool);
        for (size_t i = 0; i < at->second.size(); ++i)
          num_wrong += found.as<int64_t>()[i * 40 + 39] != at->second[i] * 40 + 39;
        disk->finish(at->first);
        window.erase(at);
      }
      for (const auto& left : window) disk->finish(left.first);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(num_wrong.load(), 0);
}

TEST("disk rows: an error names file and row, and other rows are given") {
  const RowsOnDisk on_disk(1000, 64, 0);
  const auto refuse_row_7 = [](int file, void* buffer, size_t count, off_t offset) -> ssize_t {
    if (offset <= 7 * 512 && 7 * 512 < offset + static_cast<off_t>(count)) {
      errno = EIO;
      return -1;
    }
    return pread(file, buffer, count, offset);
  };
  const RowStore store = on_disk.store(on_disk.open(100, refuse_row_7));
  ThreadPool pool(1);
  for (const bool is_announced : {false, true}) {
    const int64_t use = is_announced ? store.disk->announce(ids({5, 6, 7, 8, 9})) : -1;
    std::string text;
    try {
      gather_rows(store, ids({5, 6, 7, 8, 9}), {}, {}, pool);
    } catch (const StorageFailure& failure) {
      text = failure.what();
    }
    CHECK(text.find(on_disk.described().path + ": row 7: ") == 0);
    CHECK(text.find("Input/output error") != std::string::npos);
    check_rows_are(gather_rows(store, ids({5, 6, 8, 9}), {}, {}, pool), {5, 6, 8, 9}, 64);
    store.disk->finish(use);
  }
  CHECK_THROWS(UnknownId, gather_rows(store, ids({1000}), {}, {}, pool));
  CHECK_THROWS(UnknownId, gather_rows(store, ids({-1}), {}, {}, pool));
  CHECK_THROWS(UnknownId, store.disk->announce(ids({1000})));
}

TEST("disk rows: a file that was cut, a disk that does not answer, short reads") {
  const RowsOnDisk on_disk(1000, 64, 100);
  ThreadPool pool(1);
  const RowStore store = on_disk.store(on_disk.open(100));
  on_disk.cut(100 + 990 * 512);
  check_rows_are(gather_rows(store, ids({0, 989}), {}, {}, pool), {0, 989}, 64);
  std::string text;
  try {
    gather_rows(store, ids({0, 995}), {}, {}, pool);
  } catch (const StorageFailure& failure) {
    text = failure.what();
  }
  CHECK(text.find(on_disk.described().path + ": row 995: expected to end at byte ") == 0);
  CHECK_THROWS(StorageFailure, on_disk.open(100));
  CHECK_THROWS(StorageFailure, DiskRows::open({"/nonexistent/x", 0, 10, 8}, {1 << 20}));

  const RowsOnDisk whole(1000, 640, 100);
  CHECK_THROWS(InvalidArgument, whole.open(1));
  const auto few_bytes = [](int file, void* buffer, size_t count, off_t offset) {
    return pread(file, buffer, std::min<size_t>(count, 1024), offset);
  };
  const RowStore by_pieces = whole.store(whole.open(100, few_bytes));
  check_rows_are(gather_rows(by_pieces, ids({3, 999, 500}), {}, {}, pool), {3, 999, 500}, 640);

  std::promise<void> answers;
  const auto held_back = [answered = answers.get_future().share()](int file, void* buffer, size_t count, off_t offset) {
    answered.wait();
    return pread(file, buffer, count, offset);
  };
  const RowStore slow = whole.store(whole.open(100, held_back, 0.01));
  CHECK_THROWS(StorageFailure, gather_rows(slow, ids({3, 4}), {}, {}, pool));
  answers.set_value();
}

TEST("disk rows: the least memory, and a file that is another by now") {
  const RowsOnDisk on_disk(1000, 8, 0);
  const int64_t least = DiskRows::least_bytes(1000, 64);
  const RowStore few = on_disk.store(DiskRows::open(on_disk.described(), {least}));
  CHECK_EQUAL(few.disk->num_slots(), 64);
  ThreadPool pool(1);
  const std::vector<int64_t> rows = random_numbers(3000, 1000, 1);
  check_rows_are(gather_rows(few, ids(rows), {}, {}, pool), rows, 8);
  CHECK_THROWS(InvalidArgument, DiskRows::open(on_disk.described(), {least - 1}));
  CHECK(DiskRows::least_bytes(3, 64) < least);

  struct stat status{};
  CHECK_EQUAL(stat(on_disk.described().path.c_str(), &status), 0);
  RowFile meant = on_disk.described();
  meant.inode = status.st_ino;
  DiskRows::open(meant, {1 << 20});
  ++meant.inode;
  CHECK_THROWS(StorageFailure, DiskRows::open(meant, {1 << 20}));
}

TEST("disk rows: a fork does not take the memory of its parent's cache") {
  const RowsOnDisk on_disk(1000, 64, 0);
  const std::shared_ptr<DiskRows> disk = on_disk.open(100);
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto is_mapped = [&] {
    unsigned char resident = 0;
    return mincore(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(disk->memory()) / page * page), 1, &resident) ==
           0;
  };
  CHECK(is_mapped());
  const pid_t child = fork();
  if (child == 0) _exit(is_mapped() ? 1 : 0);
  int status = 0;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace gld::test

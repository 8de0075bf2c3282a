#include "feature/direct_file.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "common/error.h"
#include "common/signals_blocked.h"

namespace gld {
namespace {

std::string of_errno(int number) { return std::generic_category().message(number); }

// What the threads share. Never freed: threads that sleep in it end with their process.
struct Readers {
  const pid_t owner = getpid();
  std::mutex mutex;
  std::condition_variable has_job;
  std::deque<std::function<void(ReadBuffer&)>> urgent, others;
  int num_threads = 0, num_idle = 0;

  void run() {
    ReadBuffer buffer;
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      ++num_idle;
      has_job.wait(lock, [this] { return !urgent.empty() || !others.empty(); });
      --num_idle;
      auto& queue = urgent.empty() ? others : urgent;
      auto job = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      job(buffer);
      job = nullptr;  // what it holds goes without the lock
      lock.lock();
    }
  }
};

std::atomic<Readers*> readers{nullptr};

Readers& readers_here() {
  Readers* now = readers.load();
  if (now != nullptr && now->owner == getpid()) return *now;
  auto made = std::make_unique<Readers>();
  if (readers.compare_exchange_strong(now, made.get())) return *made.release();
  return *now;  // another thread was first
}

// Reads that this thread has the system do at once: Linux's AIO, which takes a third of the processor time of as many
// threads that wait for a read each, and is allowed in containers, where io_uring mostly is not.
class ReadsAtOnce {
 public:
  ReadsAtOnce() { is_open_ = syscall(SYS_io_setup, DirectFile::kMostTogether, &context_) == 0; }
  ~ReadsAtOnce() { close(); }
  ReadsAtOnce(const ReadsAtOnce&) = delete;
  ReadsAtOnce& operator=(const ReadsAtOnce&) = delete;

  // Does the first reads of `wanted` that the system takes; got[i] is how many bytes came, or an error below 0, and
  // stays as it is for the others. Nothing is under way when it returns.
  void run(std::array<iocb, DirectFile::kMostTogether>& wanted, size_t count, int64_t* got) {
    if (!is_open_) return;
    std::array<iocb*, DirectFile::kMostTogether> pointers{};
    for (size_t i = 0; i < count; ++i) {
      wanted[i].aio_data = i;
      pointers[i] = &wanted[i];
    }
    long begun = 0;
    while (begun < static_cast<long>(count)) {
      const long taken = syscall(SYS_io_submit, context_, count - begun, pointers.data() + begun);
      if (taken <= 0) break;  // as in a fork, which does not have the context of its parent
      begun += taken;
    }
    std::array<io_event, DirectFile::kMostTogether> events;
    while (begun > 0) {
      const long ended = syscall(SYS_io_getevents, context_, begun, begun, events.data(), nullptr);
      if (ended < 0 && errno == EINTR) continue;
      if (ended < 0) return close();  // which waits for what is under way
      for (long i = 0; i < ended; ++i) got[events[i].data] = events[i].res;
      begun -= ended;
    }
  }

 private:
  void close() {
    if (is_open_) syscall(SYS_io_destroy, context_);
    is_open_ = false;
  }

  aio_context_t context_ = 0;
  bool is_open_;
};

}  // namespace

char* ReadBuffer::of_size(size_t count) {
  if (count > size_) {
    memory_.reset();
    size_ = 0;
    memory_.reset(static_cast<char*>(::operator new(count, std::align_val_t{kAlignment})));
    size_ = count;
  }
  return memory_.get();
}

DirectFile::DirectFile(std::string path, ReadFunction read)
    : path_(std::move(path)), read_(read ? read : ReadFunction(::pread)), is_pread_(!read) {
  if (!open_direct()) {
    file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) throw StorageFailure(message(path_, ": cannot be opened: ", of_errno(errno)));
    posix_fadvise(file_, 0, 0, POSIX_FADV_RANDOM);  // read nothing but what is asked for
  }
  struct stat status{};
  if (fstat(file_, &status) != 0) {
    const int number = errno;
    ::close(file_);
    throw StorageFailure(message(path_, ": cannot be examined: ", of_errno(number)));
  }
  size_ = status.st_size;
  inode_ = status.st_ino;
}

// With the smallest block that the file system takes.
bool DirectFile::open_direct() {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (file_ < 0) return false;
  ReadBuffer buffer;
  for (const int64_t block : {512, 4096}) {
    if (::pread(file_, buffer.of_size(block), block, 0) < 0) continue;
    block_ = block;
    return is_direct_ = true;
  }
  ::close(std::exchange(file_, -1));
  return false;
}

DirectFile::~DirectFile() {
  if (file_ >= 0) ::close(file_);
}

const char* DirectFile::read(int64_t begin, int64_t end, ReadBuffer& buffer,
                             const std::function<std::string()>& what) const {
  const int64_t first = first_block({begin, end}), count = bytes_of_blocks({begin, end});
  char* const memory = buffer.of_size(static_cast<size_t>(count));
  int64_t done = 0;
  while (first + done < end) {
    if (is_direct_) done = done / block_ * block_;  // what a read left of a block is read again with its block
    const ssize_t got = read_(file_, memory + done, static_cast<size_t>(count - done), first + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw StorageFailure(message(what(), "cannot be read: ", of_errno(errno)));
    if (first + done + got < end && (got == 0 || (is_direct_ && got < block_)))
      throw StorageFailure(message(what(), "expected to end at byte ", end, ", the file ends at ", first + done + got));
    done += got;
  }
  return memory + (begin - first);
}

void DirectFile::read_together(std::vector<FileRange>& ranges, ReadBuffer& buffer) const {
  const size_t count = std::min(ranges.size(), kMostTogether);
  if (!is_direct_ || !is_pread_ || count < 2) return;
  static thread_local ReadsAtOnce reads;
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) total += bytes_of_blocks(ranges[i]);
  char* memory = buffer.of_size(static_cast<size_t>(total));
  std::array<iocb, kMostTogether> wanted{};
  std::array<int64_t, kMostTogether> got{};
  for (size_t i = 0; i < count; ++i) {
    wanted[i].aio_fildes = static_cast<uint32_t>(file_);
    wanted[i].aio_lio_opcode = IOCB_CMD_PREAD;
    wanted[i].aio_buf = reinterpret_cast<uint64_t>(memory);
    wanted[i].aio_nbytes = static_cast<uint64_t>(bytes_of_blocks(ranges[i]));
    wanted[i].aio_offset = first_block(ranges[i]);
    memory += bytes_of_blocks(ranges[i]);
  }
  reads.run(wanted, count, got.data());
  for (size_t i = 0; i < count; ++i)
    if (const int64_t first = first_block(ranges[i]); got[i] >= ranges[i].end - first)  // the file may end in a block
      ranges[i].bytes = reinterpret_cast<const char*>(wanted[i].aio_buf) + (ranges[i].begin - first);
}

void read_soon(std::function<void(ReadBuffer&)> job, bool is_urgent) {
  Readers& here = readers_here();
  {
    const std::lock_guard<std::mutex> lock(here.mutex);
    const size_t num_waiting = here.urgent.size() + here.others.size() + 1;
    if (static_cast<size_t>(here.num_idle) < num_waiting && here.num_threads < kReadThreads) {
      try {
        const SignalsBlocked blocked;
        std::thread([&here] { here.run(); }).detach();
        ++here.num_threads;
      } catch (const std::system_error&) {  // fewer are enough
      }
    }
    if (here.num_threads > 0) {
      (is_urgent ? here.urgent : here.others).push_back(std::move(job));
      return here.has_job.notify_one();
    }
  }
  ReadBuffer buffer;
  job(buffer);
}

}  // namespace gld

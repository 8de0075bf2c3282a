#include "channel/shm_ring.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

#include "channel/futex.h"
#include "channel/memory_file.h"
#include "channel/process_id.h"

namespace gld {
namespace {

constexpr uint64_t kMagic = 0x32474e4952444c47;  // "GLDRING2"
constexpr uint64_t kPage = 4096, kAlignment = 64;
constexpr uint64_t kCommitStep = uint64_t{4} << 20;
constexpr std::chrono::milliseconds kSlice{100};

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

std::string system_error(int code) { return std::strerror(code); }

// Closes the descriptor unless it is handed on.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  int take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

int create_shared(uint64_t bytes) {
  try {
    return create_memory_file("graphlearn_dist.ring", bytes);
  } catch (const std::system_error& error) {
    throw ChannelError(message("cannot create ", bytes, " bytes of shared memory: ", error.what()));
  }
}

bool is_shared_memory(int fd) {
  try {
    return has_fixed_size(fd);
  } catch (const std::system_error&) {  // another file
    return false;
  }
}

void* map_shared(int fd, uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED)
    throw ChannelError(message("cannot map ", bytes, " bytes of shared memory: ", system_error(errno)));
  return memory;
}

// The moment `after` from now on the clock of pthread_mutex_timedlock.
timespec realtime_after(std::chrono::nanoseconds after) {
  timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  const int64_t nanoseconds = at.tv_nsec + after.count();
  at.tv_sec += nanoseconds / 1000000000;
  at.tv_nsec = nanoseconds % 1000000000;
  return at;
}

}  // namespace

// --- what lies in the shared memory: header, slots, then the data at the next page ------------------------------

struct ShmRing::Slot {
  std::atomic<uint64_t> offset;
  std::atomic<uint64_t> size;
  std::atomic<uint64_t> span;  // size rounded up: what the message takes from the ring
  std::atomic<uint32_t> released;
};

struct ShmRing::Header {
  uint64_t magic, mapped_bytes, capacity, data_offset, most_together;
  uint32_t max_messages;
  pthread_mutex_t producers;  // guards everything a producer writes
  std::atomic<uint64_t> committed;
  // Sequence numbers only grow: tail <= read <= head. Messages [tail, read) are held, [read, head) are pending.
  alignas(64) std::atomic<uint64_t> head;
  std::atomic<uint32_t> published;  // futex: changes with head, and on close
  alignas(64) std::atomic<uint64_t> read;
  std::atomic<uint64_t> tail;
  std::atomic<uint32_t> freed;     // futex: changes with tail, and on close
  std::atomic<uint64_t> consumer;  // see process_id.h: the creator, then whoever received last
  std::atomic<uint32_t> closed;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "a lock hidden in an atomic would not work between processes");

// --- Deadline ---------------------------------------------------------------------------------------------------

Deadline::Deadline(std::optional<double> timeout_s) {
  if (!timeout_s) return;
  if (std::isnan(*timeout_s) || *timeout_s < 0)
    throw InvalidArgument(message("timeout_s: expected at least 0 seconds or None, got ", *timeout_s));
  if (*timeout_s > 1e9) return;  // decades are for ever, and would overflow the clock
  at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*timeout_s));
}

std::chrono::nanoseconds Deadline::remaining(std::chrono::nanoseconds most) const {
  if (!at_) return most;
  return std::clamp<std::chrono::nanoseconds>(*at_ - Clock::now(), std::chrono::nanoseconds(0), most);
}

// --- open and close ---------------------------------------------------------------------------------------------

std::shared_ptr<ShmRing> ShmRing::create(size_t capacity_bytes, uint32_t max_messages, size_t most_together_bytes) {
  if (capacity_bytes < 1 || capacity_bytes > std::numeric_limits<int64_t>::max() / 2)
    throw InvalidArgument(message("capacity_bytes: expected at least 1 and less than 2**62, got ", capacity_bytes));
  if (max_messages < 1) throw InvalidArgument("max_messages: expected at least 1, got 0");
  const uint64_t capacity = round_up(capacity_bytes, kPage);
  const uint64_t data_offset = round_up(sizeof(Header) + sizeof(Slot) * uint64_t{max_messages}, kPage);
  const uint64_t mapped_bytes = data_offset + capacity;

  Fd fd(create_shared(mapped_bytes));
  // Fixed pages first, by a call that can fail, instead of by a write that would be a SIGBUS.
  if (const int code = posix_fallocate(fd.get(), 0, static_cast<off_t>(data_offset)))
    throw ChannelError(message("no shared memory left for a channel: ", system_error(code)));
  void* memory = map_shared(fd.get(), mapped_bytes);

  auto* header = new (memory) Header{};
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&header->producers, &attributes);
  pthread_mutexattr_destroy(&attributes);
  header->mapped_bytes = mapped_bytes;
  header->capacity = capacity;
  header->data_offset = data_offset;
  header->most_together = most_together_bytes;
  header->max_messages = max_messages;
  header->consumer.store(current_process_id());
  header->magic = kMagic;
  return std::shared_ptr<ShmRing>(new ShmRing(fd.take(), memory, mapped_bytes));
}

std::shared_ptr<ShmRing> ShmRing::open(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0)
    throw ChannelError(message("cannot open the channel ", path, ": ", system_error(errno),
                               " (the process that made it must be alive, on this host)"));
  struct stat status;
  if (!is_shared_memory(fd.get()) || fstat(fd.get(), &status) != 0 ||
      static_cast<uint64_t>(status.st_size) < sizeof(Header))
    throw ChannelError(message(path, " is not a channel of this version"));
  const auto mapped_bytes = static_cast<uint64_t>(status.st_size);
  void* memory = map_shared(fd.get(), mapped_bytes);
  const auto* header = static_cast<const Header*>(memory);
  const bool valid = header->magic == kMagic && header->mapped_bytes == mapped_bytes &&
                     header->data_offset >= sizeof(Header) + sizeof(Slot) * uint64_t{header->max_messages} &&
                     header->data_offset <= mapped_bytes && header->capacity == mapped_bytes - header->data_offset;
  if (!valid) {
    munmap(memory, mapped_bytes);
    throw ChannelError(message(path, " is not a channel of this version"));
  }
  return std::shared_ptr<ShmRing>(new ShmRing(fd.take(), memory, mapped_bytes));
}

ShmRing::ShmRing(int fd, void* memory, size_t mapped_bytes)
    : fd_(fd),
      memory_(memory),
      mapped_bytes_(mapped_bytes),
      header_(static_cast<Header*>(memory)),
      capacity_(header_->capacity),
      most_together_(std::min(header_->most_together, capacity_)),
      max_messages_(header_->max_messages),
      slots_(reinterpret_cast<Slot*>(header_ + 1)),
      data_(static_cast<char*>(memory) + header_->data_offset) {}

ShmRing::~ShmRing() {
  munmap(memory_, mapped_bytes_);
  ::close(fd_);
}

void ShmRing::close() {
  header_->closed.store(1, std::memory_order_seq_cst);
  futex_bump(header_->published);
  futex_bump(header_->freed);
}

bool ShmRing::closed() const { return header_->closed.load(std::memory_order_acquire) != 0; }

// --- sending ----------------------------------------------------------------------------------------------------

// The producers' mutex, for a scope. Held while a producer waits for room, so that small messages of others cannot
// starve a large one.
class ShmRing::ProducerLock {
 public:
  ProducerLock(ShmRing& ring, const Deadline& deadline, const Poll& poll) : mutex_(ring.header_->producers) {
    for (;;) {
      ring.check_open_for_send();
      const timespec until = realtime_after(deadline.remaining(kSlice));
      const int code = pthread_mutex_timedlock(&mutex_, &until);
      if (code == 0) return;
      if (code == EOWNERDEAD) {
        // The last producer was killed. It had published its message or nothing: there is nothing to repair.
        pthread_mutex_consistent(&mutex_);
        return;
      }
      if (code == EDEADLK) throw ChannelError("send() was called again from within send(), by a signal handler");
      if (code != ETIMEDOUT) throw ChannelError(message("cannot lock the channel: ", system_error(code)));
      if (deadline.passed()) throw ChannelTimeout("send: other producers kept the channel busy until the deadline");
      poll();
    }
  }
  ~ProducerLock() { pthread_mutex_unlock(&mutex_); }
  ProducerLock(const ProducerLock&) = delete;
  ProducerLock& operator=(const ProducerLock&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

void ShmRing::check_open_for_send() const {
  if (closed()) throw ChannelClosed("send: the channel is closed");
}

bool ShmRing::find_space(uint64_t span, uint64_t* offset) const {
  const uint64_t head = header_->head.load(std::memory_order_relaxed);
  const uint64_t tail = header_->tail.load(std::memory_order_acquire);
  *offset = 0;
  if (head == tail) return true;  // empty: start over in memory that is already warm
  if (head - tail >= max_messages_) return false;
  const Slot& newest = slot(head - 1);
  const uint64_t begin = slot(tail).offset.load(std::memory_order_relaxed);
  const uint64_t end = newest.offset.load(std::memory_order_relaxed) + newest.span.load(std::memory_order_relaxed);
  *offset = end;
  if (end <= begin) return begin - end >= span;  // wrapped: one gap
  if (most_together_ >= end && most_together_ - end >= span) return true;
  *offset = 0;
  return begin >= span;
}

uint64_t ShmRing::wait_for_space(uint64_t span, const Deadline& deadline, const Poll& poll) {
  uint64_t offset = 0;
  for (;;) {
    check_open_for_send();
    const uint32_t freed = header_->freed.load(std::memory_order_seq_cst);
    if (find_space(span, &offset)) return offset;
    const uint64_t consumer = header_->consumer.load(std::memory_order_acquire);
    if (!process_is_alive(consumer))
      throw ChannelClosed(message("send: the consumer (pid ", pid_of(consumer), ") is gone"));
    if (deadline.passed())
      throw ChannelTimeout(message("send: no room for ", span, " bytes within the deadline; the channel holds ",
                                   pending(), " unread and ", held(), " unreleased messages of at most ", max_messages_,
                                   ", capacity ", capacity_, " bytes"));
    futex_wait(header_->freed, freed, deadline.remaining(kSlice));
    poll();
  }
}

// Takes memory from the system up to `end`, by a call that can fail: a write without it would be a SIGBUS.
void ShmRing::commit(uint64_t end) {
  uint64_t committed = header_->committed.load(std::memory_order_relaxed);
  while (committed < end) {
    // No more ahead than what lies there together.
    const uint64_t bound = committed < most_together_ ? most_together_ : end;
    const uint64_t step = std::min(kCommitStep, bound - committed);
    const int code =
        posix_fallocate(fd_, static_cast<off_t>(header_->data_offset + committed), static_cast<off_t>(step));
    if (code == EINTR) continue;  // a signal took back this step only
    if (code != 0)
      throw ChannelError(message("send: no shared memory left beyond ", committed, " of ", capacity_,
                                 " bytes of the channel: ", system_error(code)));
    committed += step;
    header_->committed.store(committed, std::memory_order_relaxed);
  }
}

void ShmRing::send(const std::vector<Bytes>& parts, const Deadline& deadline, const Poll& poll) {
  uint64_t size = 0;
  for (const Bytes& part : parts) size += part.size;
  if (size > capacity_)
    throw MessageTooLarge(
        message("a message of ", size, " bytes can never fit into a channel of ", capacity_, " bytes"));
  const uint64_t span = std::max(kAlignment, round_up(size, kAlignment));

  ProducerLock lock(*this, deadline, poll);
  const uint64_t offset = wait_for_space(span, deadline, poll);
  // Another process may have written these numbers; a wrong one must not become a wild pointer.
  if (offset > capacity_ || span > capacity_ - offset) throw ChannelError("send: the channel's memory is damaged");
  commit(offset + span);
  char* out = data_ + offset;
  for (const Bytes& part : parts) {
    if (part.size != 0) std::memcpy(out, part.data, part.size);
    out += part.size;
  }
  const uint64_t head = header_->head.load(std::memory_order_relaxed);
  Slot& next = slot(head);
  next.offset.store(offset, std::memory_order_relaxed);
  next.size.store(size, std::memory_order_relaxed);
  next.span.store(span, std::memory_order_relaxed);
  next.released.store(0, std::memory_order_relaxed);
  header_->head.store(head + 1, std::memory_order_release);
  futex_bump(header_->published);
}

// --- receiving --------------------------------------------------------------------------------------------------

ShmRing::Slot& ShmRing::slot(uint64_t sequence) const { return slots_[sequence % max_messages_]; }

// Producers that wait ask now and then whether this process is alive.
void ShmRing::become_consumer() {
  const uint64_t known = header_->consumer.load(std::memory_order_relaxed);
  if (pid_of(known) != static_cast<int>(getpid()))
    header_->consumer.store(current_process_id(), std::memory_order_release);
}

// Takes the next message, or null. A slot read for a sequence number that another thread took meanwhile may be that
// of a later message; then the exchange fails, and nothing of it is used.
std::unique_ptr<ShmRing::Message> ShmRing::pop() {
  uint64_t read = header_->read.load(std::memory_order_seq_cst);
  for (uint64_t head; read < (head = header_->head.load(std::memory_order_acquire));) {
    const uint64_t offset = slot(read).offset.load(std::memory_order_relaxed);
    const uint64_t size = slot(read).size.load(std::memory_order_relaxed);
    if (header_->read.compare_exchange_weak(read, read + 1, std::memory_order_seq_cst)) {
      // Another process wrote these numbers; a wrong one must not become a wild pointer, nor messages without an end.
      if (offset > capacity_ || size > capacity_ - offset || head - read > max_messages_)
        throw ChannelError("recv: the channel's memory is damaged");
      return std::make_unique<Message>(shared_from_this(), read, Bytes{data_ + offset, size});
    }
  }
  return nullptr;
}

std::unique_ptr<ShmRing::Message> ShmRing::try_recv() {
  become_consumer();
  const bool was_closed = closed();  // before looking: what was sent before the close is seen
  std::unique_ptr<Message> received = pop();
  if (received == nullptr && was_closed) throw ChannelClosed("recv: the channel is closed and drained");
  return received;
}

std::unique_ptr<ShmRing::Message> ShmRing::recv(const Deadline& deadline, const Poll& poll) {
  for (;;) {
    const uint32_t published = header_->published.load(std::memory_order_seq_cst);
    if (std::unique_ptr<Message> received = try_recv()) return received;
    if (deadline.passed()) throw ChannelTimeout("recv: no message within the deadline");
    futex_wait(header_->published, published, deadline.remaining(kSlice));
    poll();
  }
}

void ShmRing::wait(const Poll& poll) {
  become_consumer();
  for (;;) {
    const uint32_t published = header_->published.load(std::memory_order_seq_cst);
    const bool was_closed = closed();
    if (pending() > 0) return;
    if (was_closed) throw ChannelClosed("wait: the channel is closed and drained");
    futex_wait(header_->published, published, kSlice);
    poll();
  }
}

// Whoever marks a message last among those at the tail moves the tail. The stores and loads are sequentially
// consistent so that of two threads which release neighbours at once, one sees the mark of the other.
void ShmRing::release(uint64_t sequence) {
  slot(sequence).released.store(1, std::memory_order_seq_cst);
  uint64_t tail = header_->tail.load(std::memory_order_seq_cst);
  bool moved = false;
  // The difference is that of unsigned numbers: false where none is held, and where the memory is damaged.
  while (header_->read.load(std::memory_order_seq_cst) - tail - 1 < max_messages_ &&
         slot(tail).released.load(std::memory_order_seq_cst) != 0) {
    if (header_->tail.compare_exchange_weak(tail, tail + 1, std::memory_order_seq_cst)) {
      ++tail;
      moved = true;
    }
  }
  if (moved) futex_bump(header_->freed);
}

ShmRing::Message::Message(std::shared_ptr<ShmRing> ring, uint64_t sequence, Bytes bytes)
    : ring_(std::move(ring)), sequence_(sequence), bytes_(bytes), pid_(static_cast<int32_t>(getpid())) {}

void ShmRing::Message::release() {
  if (ring_ == nullptr) return;
  if (static_cast<int32_t>(getpid()) == pid_) ring_->release(sequence_);
  bytes_ = {};
  ring_.reset();
}

// --- what it holds ----------------------------------------------------------------------------------------------

std::string ShmRing::path() const { return message("/proc/", getpid(), "/fd/", fd_); }

uint64_t ShmRing::pending() const {
  const uint64_t read = header_->read.load(std::memory_order_acquire);
  const uint64_t head = header_->head.load(std::memory_order_acquire);
  return head > read ? head - read : 0;  // less only where the memory is damaged
}

uint64_t ShmRing::held() const {
  const uint64_t tail = header_->tail.load(std::memory_order_acquire);
  return header_->read.load(std::memory_order_acquire) - tail;
}

uint64_t ShmRing::pending_bytes() const {
  uint64_t total = 0;
  const uint64_t head = header_->head.load(std::memory_order_acquire);
  for (uint64_t i = header_->read.load(std::memory_order_acquire); i < head; ++i)
    total += slot(i).size.load(std::memory_order_relaxed);
  return total;
}

uint64_t ShmRing::committed_bytes() const { return header_->committed.load(std::memory_order_relaxed); }

size_t ShmRing::capacity_bytes() const { return capacity_; }

uint32_t ShmRing::max_messages() const { return max_messages_; }

}  // namespace gld

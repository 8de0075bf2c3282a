#include "serving/worker_feed.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "channel/memory_file.h"
#include "common/error.h"
#include "common/signals_blocked.h"
#include "rpc/failure.h"

namespace gld::serving {
namespace {

constexpr uint64_t kReturnRingBytes = 64 << 10;
constexpr uint32_t kReturnMessages = 256;
constexpr size_t kMostTogether = 16;  // slots that wait to be given back together
constexpr size_t kMostOfMessage = 512;
constexpr uint64_t kShare = 64;  // of the region: so many bytes of slots do not wait

// The first bytes of a message, as graphlearn_dist.distributed.workers.worker_messages.ItemHeader packs them.
struct Header {
  enum Kind : int64_t { kBatch = 1, kEnd = 2, kFailure = 3 };
  int64_t kind, run, epoch, index, offset, nbytes, head_bytes, count;
};
static_assert(sizeof(Header) == 64);

// What stands before a value in one piece, as graphlearn_dist.rpc.wire.encoded.Encoded.write_parts writes it.
#pragma pack(push, 1)
struct BlobPrefix {
  char magic[4];
  uint32_t head_bytes;
  uint64_t payload_bytes;
};
#pragma pack(pop)
static_assert(sizeof(BlobPrefix) == 16);

uint64_t padded(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

const Poll kNothing = [] {};

// Whether so many bytes can be read, and always will be: others' memory must not end while it is looked at.
bool has_bytes(int fd, uint64_t bytes) {
  struct stat status;
  try {
    return has_fixed_size(fd) && fstat(fd, &status) == 0 && static_cast<uint64_t>(status.st_size) >= bytes;
  } catch (const std::system_error&) {  // another file
    return false;
  }
}

}  // namespace

// --- Region ----------------------------------------------------------------------------------------------------------

Region::Region(const std::string& path, uint64_t bytes) : memory_(MAP_FAILED), bytes_(bytes) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), path);
  int code = EINVAL;
  if (has_bytes(fd, bytes)) {
    memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    code = errno;
  }
  ::close(fd);
  if (memory_ == MAP_FAILED) throw std::system_error(code, std::generic_category(), path);
}

Region::~Region() { munmap(memory_, bytes_); }

void* Region::at(uint64_t offset, uint64_t nbytes) const {
  if (offset > bytes_ || nbytes > bytes_ - offset)
    throw ChannelError(message("a slot of ", nbytes, " bytes at ", offset, " lies outside of a region of ", bytes_));
  return static_cast<char*>(memory_) + offset;
}

// --- SlotReturns -----------------------------------------------------------------------------------------------------

SlotReturns::SlotReturns(std::shared_ptr<ShmRing> ring, uint64_t region_bytes)
    : ring_(std::move(ring)), most_bytes_(region_bytes / kShare), owner_(getpid()) {
  waiting_.reserve(kMostTogether);
}

void SlotReturns::give_back(uint64_t offset, uint64_t nbytes) noexcept {
  if (getpid() != owner_) return;
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(offset);
    waiting_bytes_ += nbytes;
    if (waiting_.size() < kMostTogether && waiting_bytes_ < most_bytes_) return;
    while (!waiting_.empty()) {
      const size_t count = std::min(waiting_.size(), kMostOfMessage);
      ring_->send({{waiting_.data(), count * sizeof(uint64_t)}}, Deadline(0.0), kNothing);
      waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(count));
    }
    waiting_bytes_ = 0;
  } catch (const ChannelTimeout&) {  // the next one tells of these, too
  } catch (const std::exception&) {  // the worker is gone, and its region with it
  }
}

std::vector<uint64_t> take_returned(ShmRing& ring) {
  std::vector<uint64_t> offsets;
  while (const auto message = ring.try_recv()) {
    const Bytes bytes = message->bytes();
    const size_t count = bytes.size / sizeof(uint64_t), before = offsets.size();
    offsets.resize(before + count);
    if (count > 0) std::memcpy(offsets.data() + before, bytes.data, count * sizeof(uint64_t));
  }
  return offsets;
}

// --- WorkerFeed ------------------------------------------------------------------------------------------------------

WorkerFeed::WorkerFeed(std::shared_ptr<BatchShelf> shelf, int worker, uint64_t ring_bytes, uint64_t most_together_bytes,
                       uint32_t max_messages)
    : shelf_(std::move(shelf)),
      worker_(worker),
      owner_(getpid()),
      ring_(ShmRing::create(ring_bytes, max_messages, most_together_bytes)),
      returns_ring_(ShmRing::create(kReturnRingBytes, kReturnMessages)) {}

WorkerFeed::~WorkerFeed() {
  if (getpid() == owner_) {
    close();
  } else if (thread_.joinable()) {
    new std::thread(std::move(thread_));  // never freed: it stands for a thread that only the parent has
  }
}

void WorkerFeed::open(const std::string& region_path, uint64_t region_bytes, uint64_t region_number) {
  auto region = std::make_shared<const Region>(region_path, region_bytes);
  std::lock_guard<std::mutex> lock(taking_);
  if (is_closed_ || region_ != nullptr) return;
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  region_ = std::move(region);
  region_number_ = region_number;
  returns_ = std::make_shared<SlotReturns>(returns_ring_, region_bytes);
}

void WorkerFeed::run() {
  pthread_setname_np(pthread_self(), "gld-batches");
  try {
    do ring_->wait(kNothing);
    while (drain());
  } catch (const ChannelClosed&) {
  }
}

bool WorkerFeed::drain() {
  std::lock_guard<std::mutex> lock(taking_);
  try {
    while (!is_closed_) {
      std::unique_ptr<ShmRing::Message> message = ring_->try_recv();
      if (message == nullptr) return true;
      take(std::move(message));
    }
  } catch (const ChannelClosed&) {
  } catch (const std::exception& error) {  // a defect must not leave a client waiting
    is_closed_ = true;
    shelf_->fail(worker_, rpc::pack_error("SamplingWorkerError", message("what a worker made: ", error.what())));
  }
  return false;
}

void WorkerFeed::take(std::unique_ptr<ShmRing::Message> message) {
  const Bytes bytes = message->bytes();
  const auto* at = static_cast<const char*>(bytes.data);
  if (bytes.size < sizeof(Header)) throw ChannelError(gld::message("a message of ", bytes.size, " bytes"));
  Header header;
  std::memcpy(&header, at, sizeof header);
  if (header.kind == Header::kEnd) return;  // nobody asks for it: the owner knows the number of batches
  if (header.kind != Header::kBatch && header.kind != Header::kFailure)
    throw ChannelError(gld::message("an item of kind ", header.kind));
  if (!shelf_->is_next(worker_, header.run, header.index, header.count))
    throw ChannelError(
        gld::message(header.count, " batches from ", header.index, " of run ", header.run, ", which are not its next"));
  Item item;
  const char* head = at + sizeof header;
  uint64_t head_bytes = static_cast<uint64_t>(header.head_bytes);
  if (header.offset != 0) {
    if (head_bytes > bytes.size - sizeof header) throw ChannelError("a head that is cut off");
    const auto offset = static_cast<uint64_t>(header.offset), nbytes = static_cast<uint64_t>(header.nbytes);
    if (region_ == nullptr) throw ChannelError("a slot, and no region");
    item.payload = region_->at(offset, nbytes);
    item.payload_bytes = nbytes;
    item.region = region_number_;
    item.offset = offset;
    item.memory = region_;
    item.owner =
        std::shared_ptr<const void>(item.payload, [region = region_, returns = returns_, offset, nbytes](
                                                      const void*) mutable { returns->give_back(offset, nbytes); });
    item.announcement = std::move(message);
  } else {
    BlobPrefix prefix;
    if (bytes.size < sizeof header + sizeof prefix) throw ChannelError("a value that is cut off");
    std::memcpy(&prefix, head, sizeof prefix);
    const uint64_t start = padded(sizeof prefix + prefix.head_bytes);
    const uint64_t room = bytes.size - sizeof header;
    if (std::memcmp(prefix.magic, "GLDB", 4) != 0 || start > room || prefix.payload_bytes > room - start)
      throw ChannelError("what is no encoded value");
    item.payload = head + start;
    item.payload_bytes = prefix.payload_bytes;
    head += sizeof prefix;
    head_bytes = prefix.head_bytes;
    item.owner = std::move(message);
  }
  item.head.assign(head, head_bytes);
  shelf_->put(worker_, header.run, header.index, header.count, std::move(item));
}

void WorkerFeed::close() {
  if (getpid() != owner_) return;
  {
    std::lock_guard<std::mutex> lock(taking_);
    is_closed_ = true;
  }
  ring_->close();
  returns_ring_->close();
  if (thread_.joinable()) thread_.join();
}

}  // namespace gld::serving

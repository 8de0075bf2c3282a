#include "common/spread_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "channel/memory_file.h"
#include "common/error.h"

namespace gld {
namespace {

[[noreturn]] void fail(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

size_t round_up(size_t number, size_t unit) { return (number + unit - 1) / unit * unit; }

// A piece is a descriptor of a file in memory.
class HostMapper : public PieceMapper {
 public:
  void check(const std::vector<int>&) const override {}
  size_t granularity(const std::vector<int>&) const override { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
  uint64_t take(int, size_t num_bytes) const override {
    return static_cast<uint64_t>(create_memory_file("graphlearn_dist.piece", num_bytes));
  }
  int share(uint64_t piece) const override { return again(static_cast<int>(piece)); }
  uint64_t receive(int descriptor) const override { return static_cast<uint64_t>(again(descriptor)); }
  void give_back(uint64_t piece) const noexcept override { close(static_cast<int>(piece)); }

  char* reserve(size_t num_bytes) const override {
    void* found = mmap(nullptr, num_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) fail("mmap");
    return static_cast<char*>(found);
  }
  void map(char* at, size_t num_bytes, uint64_t piece) const override {
    const int descriptor = static_cast<int>(piece);
    struct stat found{};
    if (fstat(descriptor, &found) != 0) fail("fstat");
    if (static_cast<size_t>(found.st_size) < num_bytes)
      throw InvalidArgument(message("pieces: expected one of ", num_bytes, " bytes, got ", found.st_size));
    if (mmap(at, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, 0) == MAP_FAILED) fail("mmap");
  }
  void unmap(char*, size_t) const noexcept override {}  // release() does
  void release(char* at, size_t num_bytes) const noexcept override { munmap(at, num_bytes); }
  bool wait() const noexcept override { return true; }

 private:
  static int again(int descriptor) {
    const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) fail("fcntl");
    return copy;
  }
};

size_t granularity_of(const PieceMapper& mapper, const std::vector<int>& places) {
  mapper.check(places);
  return mapper.granularity(places);
}

}  // namespace

std::unique_ptr<PieceMapper> make_host_mapper() { return std::make_unique<HostMapper>(); }

std::vector<MemoryPiece> divide_memory(const std::vector<int>& places, size_t num_bytes, size_t granularity) {
  const size_t share = round_up((num_bytes + places.size() - 1) / places.size(), granularity);
  size_t left = round_up(num_bytes, granularity);
  std::vector<MemoryPiece> pieces;
  for (const int place : places) {
    const size_t here = std::min(share, left);
    if (here == 0) break;
    pieces.push_back({place, here});
    left -= here;
  }
  return pieces;
}

// Of an object that this constructor has made the destructor runs, whatever those that go on from it throw.
SpreadMemory::SpreadMemory(std::shared_ptr<const PieceMapper> mapper, std::vector<MemoryPiece> pieces)
    : mapper_(std::move(mapper)), pieces_(std::move(pieces)), process_(getpid()) {
  for (const MemoryPiece& piece : pieces_) num_bytes_ += piece.num_bytes;
}

SpreadMemory::SpreadMemory(std::shared_ptr<const PieceMapper> mapper, const std::vector<int>& places, size_t num_bytes)
    : SpreadMemory(mapper, divide_memory(places, num_bytes, granularity_of(*mapper, places))) {
  for (const MemoryPiece& piece : pieces_) taken_.push_back(mapper_->take(piece.place, piece.num_bytes));
  map_all();
}

SpreadMemory::SpreadMemory(std::shared_ptr<const PieceMapper> mapper, std::vector<MemoryPiece> pieces,
                           const std::vector<int>& descriptors)
    : SpreadMemory(std::move(mapper), std::move(pieces)) {
  if (descriptors.size() != pieces_.size())
    throw InvalidArgument(
        message("descriptors: expected one for each of ", pieces_.size(), " pieces, got ", descriptors.size()));
  std::vector<int> places;
  for (const MemoryPiece& piece : pieces_) places.push_back(piece.place);
  mapper_->check(places);
  for (const int descriptor : descriptors) taken_.push_back(mapper_->receive(descriptor));
  map_all();
}

void SpreadMemory::map_all() {
  begin_ = mapper_->reserve(num_bytes_);
  size_t offset = 0;
  for (; num_mapped_ < pieces_.size(); ++num_mapped_) {
    mapper_->map(begin_ + offset, pieces_[num_mapped_].num_bytes, taken_[num_mapped_]);
    offset += pieces_[num_mapped_].num_bytes;
  }
}

SpreadMemory::~SpreadMemory() {
  if (process_ != getpid()) return;
  if (num_mapped_ > 0 && !mapper_->wait()) return;
  size_t offset = 0;
  for (size_t number = 0; number < num_mapped_; ++number) {
    mapper_->unmap(begin_ + offset, pieces_[number].num_bytes);
    offset += pieces_[number].num_bytes;
  }
  if (begin_ != nullptr) mapper_->release(begin_, num_bytes_);
  for (const uint64_t piece : taken_) mapper_->give_back(piece);
}

std::vector<int> SpreadMemory::share() const {
  std::vector<int> descriptors;
  try {
    for (const uint64_t piece : taken_) descriptors.push_back(mapper_->share(piece));
  } catch (...) {
    for (const int descriptor : descriptors) close(descriptor);
    throw;
  }
  return descriptors;
}

}  // namespace gld

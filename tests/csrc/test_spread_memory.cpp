// Memory in pieces at one range of addresses: who holds what, what others map, and that nothing is left of it.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>

#include "check.h"
#include "common/spread_memory.h"
#include "spread.h"

namespace gld::test {
namespace {

constexpr size_t kPage = 4096;

std::vector<size_t> sizes_of(const std::vector<MemoryPiece>& pieces) {
  std::vector<size_t> out;
  for (const MemoryPiece& piece : pieces) out.push_back(piece.num_bytes);
  return out;
}

TEST("spread memory: equal shares, in the order of the places, of little memory in the first ones alone") {
  using Sizes = std::vector<size_t>;
  const std::vector<int> places = {4, 2, 7};
  CHECK(sizes_of(divide_memory(places, 9 * kPage, kPage)) == Sizes({3 * kPage, 3 * kPage, 3 * kPage}));
  CHECK(sizes_of(divide_memory(places, 9 * kPage + 1, kPage)) == Sizes({4 * kPage, 4 * kPage, 2 * kPage}));
  CHECK(sizes_of(divide_memory(places, kPage + 1, kPage)) == Sizes({kPage, kPage}));
  CHECK(sizes_of(divide_memory(places, 1, kPage)) == Sizes({kPage}));
  CHECK(sizes_of(divide_memory({3}, 5 * kPage - 1, kPage)) == Sizes({5 * kPage}));
  const auto pieces = divide_memory(places, 9 * kPage, kPage);
  CHECK(pieces[0].place == 4 && pieces[1].place == 2 && pieces[2].place == 7);
}

TEST("spread memory: one range to write and to read, across the ends of pieces") {
  const SpreadMemory memory(host_mapper(), {0, 1, 2}, 5 * kPage);
  CHECK_EQUAL(memory.pieces().size(), 3u);
  auto* numbers = reinterpret_cast<int64_t*>(memory.begin());
  const int64_t count = static_cast<int64_t>(memory.num_bytes() / sizeof(int64_t));
  std::iota(numbers, numbers + count, int64_t{0});
  for (int64_t i = 0; i < count; ++i) CHECK_EQUAL(numbers[i], i);
  char across[16];
  std::memcpy(across, memory.begin() + memory.pieces()[0].num_bytes - 8, 16);
  CHECK(std::memcmp(across, numbers + memory.pieces()[0].num_bytes / 8 - 1, 16) == 0);
}

TEST("spread memory: others map the same pieces, which live as long as one of them does") {
  auto memory = std::make_unique<SpreadMemory>(host_mapper(), std::vector<int>{0, 1}, 3 * kPage);
  memory->begin()[0] = 'a';
  const std::vector<int> descriptors = memory->share();
  const SpreadMemory other(host_mapper(), memory->pieces(), descriptors);
  const SpreadMemory third(host_mapper(), other.pieces(), other.share());  // its descriptors are left open
  for (const int descriptor : descriptors) close(descriptor);
  CHECK(other.begin() != memory->begin());
  memory->begin()[2 * kPage] = 'b';
  memory.reset();
  CHECK(other.begin()[0] == 'a' && third.begin()[2 * kPage] == 'b');
}

TEST("spread memory: what does not describe pieces is refused") {
  const SpreadMemory memory(host_mapper(), {0, 1}, 2 * kPage);
  const std::vector<int> descriptors = memory.share();
  CHECK_THROWS(InvalidArgument, SpreadMemory(host_mapper(), memory.pieces(), {descriptors[0]}));
  CHECK_THROWS(InvalidArgument, SpreadMemory(host_mapper(), {{0, kPage}, {1, 2 * kPage}}, descriptors));
  CHECK_THROWS(std::system_error, SpreadMemory(host_mapper(), memory.pieces(), {descriptors[0], -1}));
  for (const int descriptor : descriptors) close(descriptor);
}

constexpr int kOutOfReach = 9;

// Counts what is taken and mapped, and fails at the call of a number.
class FailingMapper : public PieceMapper {
 public:
  explicit FailingMapper(int fails_at) : fails_at_(fails_at) {}

  void check(const std::vector<int>& places) const override {
    for (const int place : places)
      if (place == kOutOfReach) throw InvalidArgument("out of reach");
  }
  size_t granularity(const std::vector<int>&) const override { return kPage; }
  uint64_t take(int, size_t) const override {
    step();
    pieces.insert(next_);
    return next_++;
  }
  int share(uint64_t piece) const override { return static_cast<int>(piece); }
  uint64_t receive(int descriptor) const override { return static_cast<uint64_t>(descriptor); }
  void give_back(uint64_t piece) const noexcept override { pieces.erase(piece); }
  char* reserve(size_t) const override {
    step();
    is_reserved = true;
    return room_;
  }
  void map(char* at, size_t, uint64_t piece) const override {
    step();
    mapped.insert({at, piece});
  }
  void unmap(char* at, size_t) const noexcept override { mapped.erase(mapped.lower_bound({at, 0})); }
  void release(char*, size_t) const noexcept override { is_reserved = false; }
  bool wait() const noexcept override {
    was_waited_for = !mapped.empty();
    return can_wait;
  }

  mutable std::set<uint64_t> pieces;
  mutable std::set<std::pair<char*, uint64_t>> mapped;
  mutable bool is_reserved = false, was_waited_for = false;
  bool can_wait = true;

 private:
  void step() const {
    if (num_steps_++ == fails_at_) throw CudaError("no room");
  }

  int fails_at_;
  mutable int num_steps_ = 0;
  mutable uint64_t next_ = 1;
  mutable char room_[3 * kPage];
};

TEST("spread memory: nothing is left where a step fails, and what was mapped is waited for") {
  constexpr int kSteps = 3 + 1 + 3;
  for (int fails_at = 0; fails_at <= kSteps; ++fails_at) {
    const auto mapper = std::make_shared<FailingMapper>(fails_at);
    if (fails_at < kSteps) {
      CHECK_THROWS(CudaError, SpreadMemory(mapper, {0, 1, 2}, 3 * kPage));
    } else {
      const SpreadMemory memory(mapper, {0, 1, 2}, 3 * kPage);
      CHECK_EQUAL(mapper->pieces.size(), 3u);
      CHECK_EQUAL(mapper->mapped.size(), 3u);
      CHECK(!mapper->was_waited_for);
    }
    CHECK(mapper->pieces.empty() && mapper->mapped.empty() && !mapper->is_reserved);
    CHECK(mapper->was_waited_for == (fails_at > 4));
  }
}

TEST("spread memory: places that the reader cannot read are refused before anything is taken") {
  const auto mapper = std::make_shared<FailingMapper>(0);
  CHECK_THROWS(InvalidArgument, SpreadMemory(mapper, {0, kOutOfReach}, 2 * kPage));
  CHECK_THROWS(InvalidArgument, SpreadMemory(mapper, {{0, kPage}, {kOutOfReach, kPage}}, {1, 2}));
  CHECK(mapper->pieces.empty() && !mapper->is_reserved);
}

TEST("spread memory: what may still be read stays where it is") {
  const auto mapper = std::make_shared<FailingMapper>(-1);
  mapper->can_wait = false;
  {
    const SpreadMemory memory(mapper, {0, 1}, 2 * kPage);
  }
  CHECK(mapper->was_waited_for);
  CHECK(mapper->pieces.size() == 2 && mapper->mapped.size() == 2 && mapper->is_reserved);
}

TEST("spread memory: a fork gives back nothing of its parent's") {
  const auto mapper = std::make_shared<FailingMapper>(-1);
  auto memory = std::make_unique<SpreadMemory>(mapper, std::vector<int>{0}, kPage);
  const pid_t child = fork();
  if (child == 0) {
    memory.reset();
    _exit(mapper->mapped.size() == 1 && mapper->pieces.size() == 1 ? 0 : 1);
  }
  int status = -1;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK_EQUAL(status, 0);
}

}  // namespace
}  // namespace gld::test

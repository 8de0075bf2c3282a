// What a query and its answer consist of: a head, and segments behind each other, each at a multiple of 64.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gld::rpc {

constexpr size_t kSegmentAlignment = 64;

// Bytes of a segment, the zeros after it included. At most 63 below 2^64.
constexpr uint64_t padded(uint64_t bytes) { return (bytes + kSegmentAlignment - 1) & -uint64_t{kSegmentAlignment}; }

// Bytes that are made when they are sent, a block at a time, while the cache still has them.
class Source {
 public:
  virtual ~Source() = default;
  // What begins and ends a block are multiples of this.
  virtual size_t unit_bytes() const = 0;
  // Writes bytes [begin, begin + count) to `out`. In order, each once, on any thread. Must not throw.
  virtual void write(size_t begin, size_t count, void* out) = 0;
};

// Memory to be sent from where it lies, or what will be made then.
struct Segment {
  const void* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<const void> owner;
  std::shared_ptr<Source> source;  // in place of the first and the third
};

// Where bytes lie in shared memory that peers of this host may map: the number of a region of this process (0: they do
// not), and the offset.
struct SharedPlace {
  uint64_t region = 0, offset = 0;
};

struct OutgoingValue {
  std::string head;
  std::vector<Segment> segments;
  SharedPlace place = {};  // of the payload, whose only segment has its owner then

  // Bytes of the payload, the zeros after each segment included.
  uint64_t payload_bytes() const {
    uint64_t bytes = 0;
    for (const Segment& segment : segments) bytes += padded(segment.bytes);
    return bytes;
  }
};

// The same with all bytes that would be made when it is sent, in pooled memory.
OutgoingValue made(OutgoingValue value);

// As it came from a peer, unchecked. Views of memory that `owner` and the caller keep.
struct IncomingValue {
  std::string_view head;
  void* payload = nullptr;
  uint64_t payload_bytes = 0;
  std::shared_ptr<void> owner;  // of the payload: what is made of it may outlive the frame
  std::string_view asker = {};  // who asks, as this side tells peers apart; nothing where that is not known
};

// What a query is answered by, once. All methods may be called from any thread, and do nothing where nobody waits for
// the answer any more.
class Reply {
 public:
  virtual ~Reply() = default;
  virtual void send(OutgoingValue value) = 0;
  // An error, as failure.h packs it.
  virtual void fail(const std::string& failure) = 0;
  // Has `call` called, once and perhaps at once, if nobody waits any more before it is answered. It must not block.
  virtual void when_called_off(std::function<void()> call) = 0;
};

// Answers queries, from any number of threads at once, which have no interpreter. What it throws is sent as an error:
// the core's exceptions as their namesakes in graphlearn_dist.errors.
class Answerer {
 public:
  virtual ~Answerer() = default;
  // Answers now, or sees to it that the reply is given later.
  virtual void begin(const IncomingValue& query, const std::shared_ptr<Reply>& reply) = 0;
  // Whether queries of one connection are begun in their order, one at a time.
  virtual bool keeps_order() const { return false; }
};

// Answers at once.
class PromptAnswerer : public Answerer {
 public:
  virtual OutgoingValue answer(const IncomingValue& query) = 0;
  void begin(const IncomingValue& query, const std::shared_ptr<Reply>& reply) final { reply->send(answer(query)); }
};

}  // namespace gld::rpc

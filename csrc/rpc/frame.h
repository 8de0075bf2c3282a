// Frames of GLD1, the wire format of the RPC, out of a stream of bytes. The table of the header's fields stands in
// graphlearn_dist/rpc/wire/gld1.py; what a head and a payload mean is Python's business.
#pragma once
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace gld::rpc {

constexpr size_t kHeaderBytes = 32;
constexpr size_t kMaxHeadBytes = 65536;
constexpr size_t kMaxUnauthenticatedHeadBytes = 1024;
constexpr uint8_t kVersion = 1;
constexpr uint16_t kFlagArena = 1;

enum class Kind : uint8_t {
  kHello = 1,
  kRequest = 5,
  kResponse = 6,
  kError = 7,
  kCancel = 8,
  kQuery = 9,
  kPing = 10,
  kPong = 11,
  kRelease = 13,
  kEvent = 14,
  kBye = 15
};

// Set in the ids of queries, which are asked, answered and called off without the interpreter.
constexpr uint64_t kQueryBit = uint64_t{1} << 63;

// The bytes are not what the protocol allows.
struct ProtocolError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// They are of another version of it.
struct VersionMismatch : ProtocolError {
  using ProtocolError::ProtocolError;
};

struct Header {
  uint8_t kind = 0;
  uint16_t flags = 0;
  uint64_t request_id = 0;
  uint32_t head_bytes = 0;
  uint32_t deadline_ms = 0;
  uint64_t payload_bytes = 0;

  // Bytes of payload that follow the head: none where the payload lies in shared memory.
  uint64_t inline_bytes() const { return flags & kFlagArena ? 0 : payload_bytes; }
  // Bytes of the head with the zeros after it, which make header and head a multiple of 64.
  size_t padded_head_bytes() const { return head_bytes + (0 - (kHeaderBytes + head_bytes)) % 64; }
};

// What a peer may send.
struct Limits {
  size_t head_bytes = kMaxUnauthenticatedHeadBytes;
  uint64_t payload_bytes = 0;
};

// Reads kHeaderBytes bytes, as they are.
Header read_header(const uint8_t* bytes);
// The same of a peer's. Throws VersionMismatch or ProtocolError.
Header parse_header(const uint8_t* bytes, const Limits& limits);

// What parse_header reads.
std::string pack_header(const Header& header);

// Header, head and padding; the payload, if any, is to follow. A head is `meta` (msgpack) behind its length, and the
// value's head. Throws InvalidArgument where that is more than a frame takes.
std::string pack_frame(Header header, std::string_view meta, std::string_view value_head);
// The two parts of a head. Throws ProtocolError.
std::pair<std::string_view, std::string_view> split_head(std::string_view head);

// A frame without payload and with an empty list for a head: PING, PONG and the like.
using ControlFrame = std::array<uint8_t, 64>;
ControlFrame control_frame(Kind kind);

struct Frame {
  Header header;
  std::string head;
  std::shared_ptr<void> payload;  // pooled; header.inline_bytes() bytes, null where there are none

  // What the frame occupies until somebody takes it; never 0.
  size_t bytes() const { return kHeaderBytes + head.size() + header.inline_bytes(); }
};

// A pure function of the bytes and the limits: how the bytes are cut into pieces, and when they come, does not matter.
//
//   for (;;) { read into room(); filled(count); while (frame = next()) ... }
class FrameDecoder {
 public:
  explicit FrameDecoder(const Limits& limits);

  // The next whole frame, nothing where bytes are missing. A payload's memory is taken from the pool when its head is
  // complete. Throws ProtocolError, VersionMismatch or std::bad_alloc, after which the decoder is of no more use.
  std::optional<Frame> next();
  // Where the next bytes belong, in this order: never nothing. Only after next() gave nothing. A large payload's bytes
  // go where they stay; all others pass through a staging buffer.
  std::array<iovec, 2> room();
  // So many bytes were written there.
  void filled(size_t bytes);
  // From the next frame on.
  void set_limits(const Limits& limits) { limits_ = limits; }
  // Bytes of the present payload that are still to come.
  size_t missing_payload_bytes() const;

 private:
  enum class Part { kHeader, kHead, kPayload };
  size_t staged() const { return end_ - start_; }
  bool take_staged(uint8_t* target, size_t wanted);
  bool take_head();
  Frame finish();

  Limits limits_;
  Part part_ = Part::kHeader;
  Frame frame_;
  size_t filled_ = 0;  // bytes of the present part that are in place
  std::unique_ptr<uint8_t[]> staging_;
  size_t start_ = 0, end_ = 0;
};

}  // namespace gld::rpc

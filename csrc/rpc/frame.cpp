#include "rpc/frame.h"

#include <algorithm>
#include <cstring>

#include "common/buffer_pool.h"
#include "common/error.h"

namespace gld::rpc {
namespace {

constexpr size_t kStagingBytes = 32 << 10;
// From here on the rest of a payload is received where it stays.
constexpr size_t kDirectBytes = 4 << 10;
constexpr char kMagic[] = {'G', 'L', 'D', '1'};
constexpr uint32_t kKinds = 0b1111'1111'1111'1110;  // bit k: there are frames of kind k

// The wire is little-endian, and so is every machine this builds on.
template <typename T>
T read(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <typename T>
void write(char* bytes, T value) {
  std::memcpy(bytes, &value, sizeof value);
}

std::string hexadecimal(const uint8_t* bytes, size_t count) {
  static const char* const kDigits = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

}  // namespace

Header read_header(const uint8_t* bytes) {
  Header header;
  header.kind = bytes[5];
  header.flags = read<uint16_t>(bytes + 6);
  header.request_id = read<uint64_t>(bytes + 8);
  header.head_bytes = read<uint32_t>(bytes + 16);
  header.deadline_ms = read<uint32_t>(bytes + 20);
  header.payload_bytes = read<uint64_t>(bytes + 24);
  return header;
}

Header parse_header(const uint8_t* bytes, const Limits& limits) {
  if (std::memcmp(bytes, kMagic, sizeof kMagic) != 0)
    throw ProtocolError(message("not a GLD1 frame: it starts with the bytes ", hexadecimal(bytes, sizeof kMagic)));
  const Header header = read_header(bytes);
  // An ERROR frame without a request is how a peer of another version says so: it must stay readable.
  const bool is_refusal = header.kind == static_cast<uint8_t>(Kind::kError) && header.request_id == 0;
  if (bytes[4] != kVersion && !is_refusal)
    throw VersionMismatch(
        message("the peer speaks version ", int{bytes[4]}, " of the protocol, this side speaks ", int{kVersion}));
  if (header.kind >= 16 || (kKinds >> header.kind & 1) == 0)
    throw ProtocolError(message("unknown frame kind ", int{header.kind}));
  if (header.head_bytes > limits.head_bytes)
    throw ProtocolError(message("head: expected at most ", limits.head_bytes, " bytes, got ", header.head_bytes));
  if (header.payload_bytes > limits.payload_bytes)
    throw ProtocolError(
        message("payload: expected at most ", limits.payload_bytes, " bytes, got ", header.payload_bytes));
  return header;
}

std::string pack_header(const Header& header) {
  std::string bytes(kHeaderBytes, '\0');
  std::memcpy(&bytes[0], kMagic, sizeof kMagic);
  write(&bytes[4], kVersion);
  write(&bytes[5], header.kind);
  write(&bytes[6], header.flags);
  write(&bytes[8], header.request_id);
  write(&bytes[16], header.head_bytes);
  write(&bytes[20], header.deadline_ms);
  write(&bytes[24], header.payload_bytes);
  return bytes;
}

std::string pack_frame(Header header, std::string_view meta, std::string_view value_head) {
  const size_t head_bytes = sizeof(uint16_t) + meta.size() + value_head.size();
  if (meta.size() > UINT16_MAX || head_bytes > kMaxHeadBytes)
    throw InvalidArgument(message("meta: ", meta.size(), " bytes do not fit into a frame's head"));
  header.head_bytes = static_cast<uint32_t>(head_bytes);
  std::string frame = pack_header(header);
  frame.reserve(frame.size() + header.padded_head_bytes());
  const auto length = static_cast<uint16_t>(meta.size());
  frame.append(reinterpret_cast<const char*>(&length), sizeof length).append(meta).append(value_head);
  return frame.append(header.padded_head_bytes() - head_bytes, '\0');
}

std::pair<std::string_view, std::string_view> split_head(std::string_view head) {
  uint16_t length;
  if (head.size() < sizeof length)
    throw ProtocolError(message("head: expected at least ", sizeof length, " bytes, got ", head.size()));
  std::memcpy(&length, head.data(), sizeof length);
  const size_t end = sizeof length + length;
  if (end > head.size()) throw ProtocolError(message("head: expected ", end, " bytes, got ", head.size()));
  return {head.substr(sizeof length, length), head.substr(end)};
}

ControlFrame control_frame(Kind kind) {
  Header header;
  header.kind = static_cast<uint8_t>(kind);
  header.head_bytes = 3;
  const std::string packed = pack_header(header);
  ControlFrame frame{};
  std::copy(packed.begin(), packed.end(), frame.begin());
  frame[32] = 1;     // a u16 length
  frame[34] = 0x90;  // and an empty list in msgpack
  return frame;
}

FrameDecoder::FrameDecoder(const Limits& limits) : limits_(limits), staging_(new uint8_t[kStagingBytes]) {}

bool FrameDecoder::take_staged(uint8_t* target, size_t wanted) {
  const size_t count = std::min(staged(), wanted - filled_);
  if (count > 0) std::memcpy(target + filled_, staging_.get() + start_, count);
  start_ += count;
  filled_ += count;
  return filled_ == wanted;
}

bool FrameDecoder::take_head() {
  const size_t head = frame_.header.head_bytes, padded = frame_.header.padded_head_bytes();
  if (filled_ < head && !take_staged(reinterpret_cast<uint8_t*>(frame_.head.data()), head)) return false;
  const size_t skipped = std::min(staged(), padded - filled_);
  start_ += skipped;
  filled_ += skipped;
  return filled_ == padded;
}

std::optional<Frame> FrameDecoder::next() {
  if (part_ == Part::kHeader && staged() >= kHeaderBytes) {
    frame_.header = parse_header(staging_.get() + start_, limits_);
    start_ += kHeaderBytes;
    frame_.head.resize(frame_.header.head_bytes);
    filled_ = 0;
    part_ = Part::kHead;
  }
  if (part_ == Part::kHead && take_head()) {
    const uint64_t payload = frame_.header.inline_bytes();
    if (payload == 0) return finish();
    frame_.payload = BufferPool::global().allocate(payload);
    filled_ = 0;
    part_ = Part::kPayload;
  }
  if (part_ == Part::kPayload && take_staged(static_cast<uint8_t*>(frame_.payload.get()), frame_.header.payload_bytes))
    return finish();
  std::memmove(staging_.get(), staging_.get() + start_, staged());
  end_ = staged();
  start_ = 0;
  return std::nullopt;
}

Frame FrameDecoder::finish() {
  part_ = Part::kHeader;
  Frame whole = std::move(frame_);
  frame_ = Frame{};
  return whole;
}

size_t FrameDecoder::missing_payload_bytes() const {
  return part_ == Part::kPayload ? frame_.header.payload_bytes - filled_ : 0;
}

std::array<iovec, 2> FrameDecoder::room() {
  const iovec staging{staging_.get() + end_, kStagingBytes - end_};
  const size_t missing = missing_payload_bytes();
  if (missing < kDirectBytes) return {staging, iovec{nullptr, 0}};
  return {iovec{static_cast<uint8_t*>(frame_.payload.get()) + filled_, missing}, staging};
}

void FrameDecoder::filled(size_t bytes) {
  const size_t missing = missing_payload_bytes();
  if (missing >= kDirectBytes) {
    const size_t direct = std::min(missing, bytes);
    filled_ += direct;
    bytes -= direct;
  }
  end_ += bytes;
}

}  // namespace gld::rpc

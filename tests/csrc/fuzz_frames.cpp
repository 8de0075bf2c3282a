// The decoder of frames, and the reader of msgpack, under arbitrary bytes. Built with clang and -fsanitize=fuzzer this
// file is a libFuzzer target (gld_fuzz_frames in CMakeLists.txt); the core's tests call it with mutated frames.
#include "fuzz_frames.h"

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "rpc/frame.h"
#include "rpc/msgpack.h"

namespace gld::test {
namespace {

using rpc::Frame;
using rpc::FrameDecoder;
using rpc::Limits;
using rpc::msgpack::Reader;

// Large enough for payloads that bypass the staging buffer, small enough to be allocated often.
constexpr Limits kKnown{rpc::kMaxHeadBytes, 1 << 20};

struct Decoded {
  std::vector<std::string> frames;
  std::string error;
};

std::string as_text(const Frame& frame) {
  const rpc::Header& header = frame.header;
  std::string text = message(int{header.kind}, ' ', header.flags, ' ', header.request_id, ' ', header.deadline_ms, ' ',
                             header.payload_bytes, ' ', frame.head, ' ');
  CHECK_EQUAL(frame.payload != nullptr, header.inline_bytes() > 0);
  if (frame.payload != nullptr) text.append(static_cast<const char*>(frame.payload.get()), header.inline_bytes());
  return text;
}

// Puts at most `count` bytes where the decoder wants them; gives how many.
size_t fill(FrameDecoder& decoder, const uint8_t* bytes, size_t count) {
  size_t done = 0;
  for (const iovec& place : decoder.room()) {
    const size_t part = std::min(count - done, place.iov_len);
    if (part > 0) std::memcpy(place.iov_base, bytes + done, part);
    done += part;
  }
  CHECK(done > 0);
  decoder.filled(done);
  return done;
}

// `pieces` is the seed of the sizes of the pieces; 0 gives everything at once.
Decoded decode(const uint8_t* bytes, size_t size, const Limits& limits, uint32_t pieces) {
  Decoded decoded;
  FrameDecoder decoder(limits);
  try {
    for (size_t given = 0; given < size;) {
      pieces = pieces * 1664525u + (pieces == 0 ? 0u : 1013904223u);
      const size_t piece = pieces == 0 ? size : 1 + (pieces >> 8) % (pieces & 64 ? 70000 : 70);
      given += fill(decoder, bytes + given, std::min(piece, size - given));
      while (std::optional<Frame> frame = decoder.next()) {
        CHECK(frame->header.head_bytes <= limits.head_bytes && frame->header.payload_bytes <= limits.payload_bytes);
        decoded.frames.push_back(as_text(*frame));
      }
    }
  } catch (const rpc::ProtocolError& error) {
    decoded.error = error.what();
  }
  return decoded;
}

}  // namespace

bool is_msgpack(std::string_view bytes) {
  const std::vector<char> exactly(bytes.begin(), bytes.end());  // so that a sanitizer sees what reads beyond it
  std::optional<Reader> reader;
  try {
    reader = Reader::of_value({exactly.data(), exactly.size()});
  } catch (const rpc::ProtocolError&) {
    return false;
  }
  while (!reader->is_at_end()) CHECK(reader->next().bytes.size() <= bytes.size());
  return true;
}

void check_any_bytes(const uint8_t* data, size_t size) {
  if (size < 2) return;
  is_msgpack({reinterpret_cast<const char*>(data), size});
  const Limits limits = data[0] & 1 ? kKnown : Limits{};
  const uint32_t pieces = 1u + data[1] * 2u;
  const Decoded whole = decode(data + 2, size - 2, limits, 0), cut = decode(data + 2, size - 2, limits, pieces);
  CHECK(whole.frames == cut.frames);
  CHECK_EQUAL(whole.error, cut.error);
}

}  // namespace gld::test

#ifdef GLD_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gld::test::check_any_bytes(data, size);
  return 0;
}
#endif

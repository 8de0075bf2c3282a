#include "rpc/frame_bytes.h"

#include <algorithm>

namespace gld::rpc {

FrameUse use_of(uint8_t kind, uint64_t request_id) {
  const bool is_query = (request_id & kQueryBit) != 0;
  switch (static_cast<Kind>(kind)) {
    case Kind::kRequest:
      return FrameUse::kRequest;
    case Kind::kQuery:
      return FrameUse::kQuery;
    case Kind::kResponse:
    case Kind::kError:
      return is_query ? FrameUse::kQueryAnswer : FrameUse::kAnswer;
    case Kind::kEvent:
      return FrameUse::kEvent;
    default:
      return FrameUse::kControl;
  }
}

void FrameBytes::add(const Header& header) {
  const auto use = static_cast<size_t>(use_of(header.kind, header.request_id));
  const uint64_t bytes = kHeaderBytes + header.padded_head_bytes() + header.inline_bytes();
  on_socket_[use].fetch_add(bytes, std::memory_order_relaxed);
  if (const uint64_t beside = header.payload_bytes - header.inline_bytes(); beside > 0)
    in_memory_[use].fetch_add(beside, std::memory_order_relaxed);
}

void FrameBytes::add_frames(const uint8_t* bytes, size_t count) {
  while (count >= kHeaderBytes) {
    const Header header = read_header(bytes);
    add(header);
    const size_t begin = kHeaderBytes + header.padded_head_bytes();
    if (begin >= count || header.inline_bytes() >= count - begin) return;
    bytes += begin + header.inline_bytes();
    count -= begin + header.inline_bytes();
  }
}

FrameBytes::Sums FrameBytes::values_of(const Counters& counters) {
  Sums sums;
  std::transform(counters.begin(), counters.end(), sums.begin(),
                 [](const std::atomic<uint64_t>& counter) { return counter.load(std::memory_order_relaxed); });
  return sums;
}

}  // namespace gld::rpc

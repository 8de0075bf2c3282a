// Values as peers receive them.
#pragma once
#include <cstring>
#include <string>
#include <utility>

#include "common/tensor.h"
#include "rpc/value.h"

namespace gld::test {

// A value as a peer would receive it.
struct Received {
  std::string head;
  Tensor payload;

  rpc::IncomingValue value() const {
    return {head, payload.data, static_cast<uint64_t>(payload.numel()), payload.owner};
  }
};

inline Received received(rpc::OutgoingValue value) {
  const rpc::OutgoingValue sent = rpc::made(std::move(value));
  Received out{sent.head, empty({static_cast<int64_t>(sent.payload_bytes())}, kUInt8)};
  size_t at = 0;
  for (const rpc::Segment& segment : sent.segments) {
    std::memcpy(out.payload.as<char>() + at, segment.data, segment.bytes);
    at += (segment.bytes + rpc::kSegmentAlignment - 1) / rpc::kSegmentAlignment * rpc::kSegmentAlignment;
  }
  return out;
}

}  // namespace gld::test

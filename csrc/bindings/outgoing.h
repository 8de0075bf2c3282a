// Queries and answers where Python carries them: a head and a payload in one piece, uint8 [n] each.
#pragma once
#include <pybind11/pybind11.h>

#include <cstring>
#include <string>
#include <utility>

#include "bindings/dlpack.h"
#include "rpc/value.h"

namespace gld {

inline Tensor head_of(const rpc::OutgoingValue& value) {
  Tensor head = empty({static_cast<int64_t>(value.head.size())}, kUInt8);
  std::memcpy(head.data, value.head.data(), value.head.size());
  return head;
}

// The segments of a query, which are all made, behind each other, uint8 [payload_bytes], with zeros between them.
inline Tensor joined(const rpc::OutgoingValue& value) {
  Tensor payload = empty({static_cast<int64_t>(value.payload_bytes())}, kUInt8);
  auto* at = payload.as<uint8_t>();
  for (const rpc::Segment& segment : value.segments) {
    if (segment.bytes == 0) continue;
    std::memcpy(at, segment.data, segment.bytes);
    std::memset(at + segment.bytes, 0, rpc::padded(segment.bytes) - segment.bytes);
    at += rpc::padded(segment.bytes);
  }
  return payload;
}

// What Python carried here. Lives as long as the calls that it is given to.
class CarriedValue {
 public:
  CarriedValue(const pybind11::object& head, const pybind11::object& payload)
      : head_(from_python(head, "head")), payload_(from_python(payload, "payload")) {
    check_vector(head_, kUInt8, head_.numel(), "head");
    check_vector(payload_, kUInt8, payload_.numel(), "payload");
  }
  rpc::IncomingValue get() const {
    return {{head_.as<char>(), static_cast<size_t>(head_.numel())},
            payload_.data,
            static_cast<uint64_t>(payload_.numel()),
            payload_.owner};
  }

 private:
  const Tensor head_, payload_;
};

}  // namespace gld

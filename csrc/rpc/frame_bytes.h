// Bytes of the frames that go over a connection, by what they are for.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "rpc/frame.h"

namespace gld::rpc {

// In the order of FRAME_USES in graphlearn_dist/rpc/traffic.py.
enum class FrameUse : uint8_t { kRequest, kAnswer, kQuery, kQueryAnswer, kEvent, kControl };
constexpr size_t kFrameUses = 6;

FrameUse use_of(uint8_t kind, uint64_t request_id);

// One way of a connection. Any thread.
class FrameBytes {
 public:
  using Sums = std::array<uint64_t, kFrameUses>;

  void add(const Header& header);
  // Whole frames of this side's, one behind the other; the payload of the last may lie elsewhere.
  void add_frames(const uint8_t* bytes, size_t count);

  // What goes over the socket: headers, heads, payloads, and the zeros behind them.
  Sums on_socket() const { return values_of(on_socket_); }
  // Payloads that lie in memory which both sides read.
  Sums in_memory() const { return values_of(in_memory_); }

 private:
  using Counters = std::array<std::atomic<uint64_t>, kFrameUses>;
  static Sums values_of(const Counters& counters);

  Counters on_socket_{}, in_memory_{};
};

}  // namespace gld::rpc

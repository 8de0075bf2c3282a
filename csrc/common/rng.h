// Counter-based random numbers: every draw is a function of what it is for, and of nothing else.
//
// The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
// generators", OOPSLA 2014; constants of Stafford's variant 13). A key absorbs (seed, epoch, batch, hop, edge type); a
// node opens a stream under the key; the stream's position-th draw needs no state. Host and device share this file.
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace gld {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

GLD_HOST_DEVICE inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

GLD_HOST_DEVICE inline uint64_t multiply_high(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
#endif
}

// Folds one more number into a key. absorb(absorb(k, a), b) differs from absorb(absorb(k, b), a).
GLD_HOST_DEVICE inline uint64_t absorb(uint64_t key, uint64_t value) { return mix64(key + kGolden * (value + 1)); }

// The key of all draws of one hop along one edge type in one batch.
GLD_HOST_DEVICE inline uint64_t draw_key(int64_t seed, int64_t epoch, int64_t batch, int64_t hop, int64_t edge_type) {
  uint64_t key = mix64(static_cast<uint64_t>(seed) + kGolden);
  key = absorb(key, static_cast<uint64_t>(epoch));
  key = absorb(key, static_cast<uint64_t>(batch));
  key = absorb(key, static_cast<uint64_t>(hop));
  return absorb(key, static_cast<uint64_t>(edge_type));
}

// The key of the shuffle of one epoch: a stream of its own, since no sampling hop has this number.
constexpr int64_t kShuffleHop = (int64_t{1} << 31) - 1;
GLD_HOST_DEVICE inline uint64_t shuffle_key(int64_t seed, int64_t epoch) {
  return draw_key(seed, epoch, 0, kShuffleHop, 0);
}

// The draws of one node under a key.
struct NodeStream {
  uint64_t state;
  GLD_HOST_DEVICE NodeStream(uint64_t key, int64_t node) : state(absorb(key, static_cast<uint64_t>(node))) {}
  GLD_HOST_DEVICE explicit NodeStream(uint64_t stream_state) : state(stream_state) {}

  GLD_HOST_DEVICE uint64_t bits(int64_t position) const {
    return mix64(state + 0xD1342543DE82EF95ull * static_cast<uint64_t>(position + 1));
  }
  // Uniform in [0, bound), by multiplication (Lemire, 2019); the bias is below bound / 2^64.
  GLD_HOST_DEVICE int64_t below(int64_t position, int64_t bound) const {
    return static_cast<int64_t>(multiply_high(bits(position), static_cast<uint64_t>(bound)));
  }
};

}  // namespace gld

// A keyed pseudo-random bijection of [0, n) in O(1) memory: partition books are built on it, and the epoch's order
// (shuffle.h) where there are many inputs.
//
// A Feistel network of alternating unequal halves over the ceil(log2 n) bits of an id (Luby and Rackoff, 1988), and
// cycle walking back into [0, n) (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002): fewer than
// two walks on average. The mapping is part of the on-disk format of partitions: it must never change.
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace gld {

class Permutation {
 public:
  static constexpr int kRounds = 8;
  static constexpr int64_t kMaxSize = int64_t{1} << 62;  // halves of at most 31 bits

  // 0 <= n <= kMaxSize; any key.
  GLD_HOST_DEVICE Permutation(int64_t n, uint64_t key) : n_(static_cast<uint64_t>(n)) {
    int bits = 0;
    while ((uint64_t{1} << bits) < n_) ++bits;
    const int left_bits = bits / 2;
    right_bits_ = bits - left_bits;
    left_mask_ = (uint32_t{1} << left_bits) - 1;
    right_mask_ = (uint32_t{1} << right_bits_) - 1;
    for (int round = 0; round < kRounds; ++round) {
      uint64_t z = key + static_cast<uint64_t>(round + 1) * 0x9E3779B97F4A7C15ull;  // SplitMix64
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
      keys_[round] = static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
    }
  }

  GLD_HOST_DEVICE int64_t size() const { return static_cast<int64_t>(n_); }

  // The place of i, 0 <= i < n.
  GLD_HOST_DEVICE int64_t forward(int64_t i) const {
    uint64_t x = static_cast<uint64_t>(i);
    do x = encrypt(x);
    while (x >= n_);
    return static_cast<int64_t>(x);
  }

  // The i whose place is p, 0 <= p < n.
  GLD_HOST_DEVICE int64_t inverse(int64_t p) const {
    uint64_t x = static_cast<uint64_t>(p);
    do x = decrypt(x);
    while (x >= n_);
    return static_cast<int64_t>(x);
  }

  // One pass of the network, a bijection of [0, 2^ceil(log2 n)). The rounds are written out because loops over
  // elements vectorise only around straight code.
  GLD_HOST_DEVICE uint64_t encrypt(uint64_t x) const {
    uint32_t left = static_cast<uint32_t>(x >> right_bits_);
    uint32_t right = static_cast<uint32_t>(x) & right_mask_;
    left ^= mix(right ^ keys_[0]) & left_mask_;
    right ^= mix(left ^ keys_[1]) & right_mask_;
    left ^= mix(right ^ keys_[2]) & left_mask_;
    right ^= mix(left ^ keys_[3]) & right_mask_;
    left ^= mix(right ^ keys_[4]) & left_mask_;
    right ^= mix(left ^ keys_[5]) & right_mask_;
    left ^= mix(right ^ keys_[6]) & left_mask_;
    right ^= mix(left ^ keys_[7]) & right_mask_;
    return (static_cast<uint64_t>(left) << right_bits_) | right;
  }

  GLD_HOST_DEVICE uint64_t decrypt(uint64_t x) const {
    uint32_t left = static_cast<uint32_t>(x >> right_bits_);
    uint32_t right = static_cast<uint32_t>(x) & right_mask_;
    right ^= mix(left ^ keys_[7]) & right_mask_;
    left ^= mix(right ^ keys_[6]) & left_mask_;
    right ^= mix(left ^ keys_[5]) & right_mask_;
    left ^= mix(right ^ keys_[4]) & left_mask_;
    right ^= mix(left ^ keys_[3]) & right_mask_;
    left ^= mix(right ^ keys_[2]) & left_mask_;
    right ^= mix(left ^ keys_[1]) & right_mask_;
    left ^= mix(right ^ keys_[0]) & left_mask_;
    return (static_cast<uint64_t>(left) << right_bits_) | right;
  }

 private:
  GLD_HOST_DEVICE static uint32_t mix(uint32_t h) {
    h *= 0x9E3779B1u;
    h ^= h >> 15;
    h *= 0x85EBCA77u;
    h ^= h >> 13;
    return h;
  }

  uint64_t n_;
  int right_bits_;
  uint32_t left_mask_, right_mask_;
  uint32_t keys_[kRounds];
};

#ifndef __CUDACC__
// out[i] = forward(in[i]) (or inverse) for many ids, several times faster than one by one. Every in[i] must lie in
// [0, n); `out` may be `in`.
void permute(const Permutation& permutation, const int64_t* in, int64_t* out, int64_t count, bool inverse = false);
#endif

}  // namespace gld

#include "common/permutation.h"

#include <algorithm>

#include "common/simd.h"

namespace gld {
namespace {

constexpr int64_t kBlock = 1024;

GLD_SIMD void encrypt_all(const Permutation& permutation, const int64_t* in, int64_t* out, int64_t count) {
  const Permutation local = permutation;  // a copy that `out` cannot alias
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(local.encrypt(static_cast<uint64_t>(in[i])));
}

GLD_SIMD void decrypt_all(const Permutation& permutation, const int64_t* in, int64_t* out, int64_t count) {
  const Permutation local = permutation;
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(local.decrypt(static_cast<uint64_t>(in[i])));
}

void permute_block(const Permutation& permutation, const int64_t* in, int64_t* out, int64_t count, bool inverse) {
  const auto pass = inverse ? decrypt_all : encrypt_all;
  pass(permutation, in, out, count);
  // Cycle walking: whatever fell outside [0, n) goes through again, packed together.
  const int64_t n = permutation.size();
  int32_t where[kBlock];
  int64_t walking[kBlock];
  int64_t left = 0;
  for (int64_t i = 0; i < count; ++i) {
    where[left] = static_cast<int32_t>(i);
    left += out[i] >= n;
  }
  while (left > 0) {
    for (int64_t j = 0; j < left; ++j) walking[j] = out[where[j]];
    pass(permutation, walking, walking, left);
    int64_t still = 0;
    for (int64_t j = 0; j < left; ++j) {
      const int32_t place = where[j];
      out[place] = walking[j];
      where[still] = place;
      still += walking[j] >= n;
    }
    left = still;
  }
}

}  // namespace

void permute(const Permutation& permutation, const int64_t* in, int64_t* out, int64_t count, bool inverse) {
  for (int64_t begin = 0; begin < count; begin += kBlock)
    permute_block(permutation, in + begin, out + begin, std::min(kBlock, count - begin), inverse);
}

}  // namespace gld

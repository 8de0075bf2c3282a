#include "sampling/cpu/uniform_block.h"

#include <cstring>

#include "common/rng.h"
#include "common/simd.h"

namespace gld {
namespace {

constexpr int64_t kVectorLanes = 8;
// A vector extension of GCC and Clang: the compiler cuts it into what the instruction set has. No more than AVX2 has:
// comparisons of longer ones are made element by element there.
typedef uint32_t Vector __attribute__((vector_size(kVectorLanes * sizeof(uint32_t))));

// NodeStream::below for a bound of 32 bits: the same high half of the product, from products that vectorise.
inline uint32_t below(uint64_t bits, uint32_t bound) {
  const uint64_t low = (bits & 0xFFFFFFFFu) * bound;
  return static_cast<uint32_t>(((bits >> 32) * bound + (low >> 32)) >> 32);
}

}  // namespace

GLD_SIMD void stream_states(uint64_t key, const int64_t* ids, const int64_t* trees, int64_t count, uint64_t* states) {
  if (trees == nullptr)
    for (int64_t i = 0; i < count; ++i) states[i] = NodeStream(key, ids[i]).state;
  else
    for (int64_t i = 0; i < count; ++i)
      states[i] = NodeStream(absorb(key, static_cast<uint64_t>(trees[i])), ids[i]).state;
}

GLD_SIMD void pick_uniform_block(const uint64_t* states, const uint32_t* degrees, int64_t fanout, bool replace,
                                 uint32_t* picks) {
  // Draw i of a row is below degree with replacement, below degree - fanout + i + 1 without (Floyd).
  for (int64_t i = 0; i < fanout; ++i) {
    const uint32_t missing = replace ? 0 : static_cast<uint32_t>(fanout - i - 1);
    uint32_t* drawn = picks + i * kBlockLanes;
    for (int64_t lane = 0; lane < kBlockLanes; ++lane)
      drawn[lane] = below(NodeStream(states[lane]).bits(i), degrees[lane] - missing);
  }
  if (replace) return;
  for (int64_t first = 0; first < kBlockLanes; first += kVectorLanes) {
    Vector degree, drawn, earlier;
    std::memcpy(&degree, degrees + first, sizeof(Vector));
    for (int64_t i = 1; i < fanout; ++i) {
      uint32_t* place = picks + i * kBlockLanes + first;
      std::memcpy(&drawn, place, sizeof(Vector));
      Vector is_taken = {};
      for (int64_t j = 0; j < i; ++j) {
        std::memcpy(&earlier, picks + j * kBlockLanes + first, sizeof(Vector));
        is_taken |= earlier == drawn;  // all bits of an element, or none
      }
      const Vector top = degree - static_cast<uint32_t>(fanout - i);
      drawn = (is_taken & top) | (~is_taken & drawn);
      std::memcpy(place, &drawn, sizeof(Vector));
    }
  }
}

}  // namespace gld

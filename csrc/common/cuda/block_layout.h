// Arrays of one block of device memory, whose size is known before it is asked for.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gld {

// Two blocks, aligned to BlockLayout::kAlignment: one for what a chain of kernels makes, one that is scratch memory of
// the next chain when it is done.
struct BatchMemory {
  char *result, *scratch;

  template <typename T>
  T* result_at(size_t offset) const {
    return reinterpret_cast<T*>(result + offset);
  }
  template <typename T>
  T* scratch_at(size_t offset) const {
    return reinterpret_cast<T*>(scratch + offset);
  }
};

struct BlockLayout {
  static constexpr size_t kAlignment = 256;
  size_t num_bytes = 0;

  // Where an array of `count` elements begins, in bytes from the start of the block.
  template <typename T>
  size_t take(int64_t count) {
    const size_t offset = num_bytes;
    num_bytes += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
};

}  // namespace gld

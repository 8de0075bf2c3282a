// Memory of a chain of kernels, as large as promised: a write beyond it is seen by the sanitizers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/cuda/block_layout.h"

namespace gld::test {

struct Memory {
  explicit Memory(size_t bytes) : data(new char[bytes + BlockLayout::kAlignment]) {}
  char* begin() const {
    constexpr size_t kAlignment = BlockLayout::kAlignment;
    return data.get() + (kAlignment - reinterpret_cast<uintptr_t>(data.get()) % kAlignment) % kAlignment;
  }
  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(begin() + offset);
  }

  std::unique_ptr<char[]> data;
};

}  // namespace gld::test

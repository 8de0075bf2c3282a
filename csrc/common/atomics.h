// Relaxed atomic operations on plain words of memory, for host and device. Kernels use them where threads of one launch
// meet; between launches everything is visible.
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace gld {

GLD_HOST_DEVICE inline uint64_t atomic_read(const uint64_t* word) {
#ifdef __CUDA_ARCH__
  return *static_cast<const volatile uint64_t*>(word);
#else
  return __atomic_load_n(word, __ATOMIC_RELAXED);
#endif
}

GLD_HOST_DEVICE inline void atomic_write(uint64_t* word, uint64_t value) {
#ifdef __CUDA_ARCH__
  *static_cast<volatile uint64_t*>(word) = value;
#else
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
#endif
}

// Lowers the word to `value` where it is higher.
GLD_HOST_DEVICE inline void atomic_lower(uint64_t* word, uint64_t value) {
#ifdef __CUDA_ARCH__
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t), "");
  atomicMin(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
#else
  uint64_t found = atomic_read(word);
  while (value < found && !__atomic_compare_exchange_n(word, &found, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
#endif
}

// Adds to the word; gives what was found.
GLD_HOST_DEVICE inline uint64_t atomic_add(uint64_t* word, uint64_t number) {
#ifdef __CUDA_ARCH__
  return atomicAdd(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(number));
#else
  return __atomic_fetch_add(word, number, __ATOMIC_RELAXED);
#endif
}

// Writes `wanted` where the word is `expected`; gives what was found.
GLD_HOST_DEVICE inline uint64_t atomic_claim(uint64_t* word, uint64_t expected, uint64_t wanted) {
#ifdef __CUDA_ARCH__
  return atomicCAS(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(expected),
                   static_cast<unsigned long long>(wanted));
#else
  __atomic_compare_exchange_n(word, &expected, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
#endif
}

}  // namespace gld

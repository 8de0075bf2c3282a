// Tells AddressSanitizer which bytes of pooled memory nobody may touch: it knows of malloc, not of pools. Does nothing
// in builds without it.
#pragma once
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, bytes) ((void)(memory), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes) ((void)(memory), (void)(bytes))
#endif

namespace gld {

// Of a block of `block` bytes, the first `bytes` may be used.
inline void allow_first_bytes(void* memory, size_t bytes, size_t block) {
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
  ASAN_POISON_MEMORY_REGION(static_cast<char*>(memory) + bytes, block - bytes);
}

}  // namespace gld

// Copies between the memories of two processes.
#pragma once
#include <cstddef>

namespace gld {

// Copies `nbytes` from `from` to `to`, which do not overlap. Many bytes are written past the caches: whoever reads them
// is another process, or comes later, and a cache would first have read what is about to be overwritten.
void copy_bytes(void* to, const void* from, size_t nbytes);

}  // namespace gld

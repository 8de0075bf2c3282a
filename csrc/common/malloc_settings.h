#pragma once

#include <cstddef>

namespace gld {

/// From now on malloc takes blocks of `nbytes` (up to 32 MiB) and more from the system one by one, and gives each back
/// as soon as it is freed. By itself glibc's malloc puts blocks of a size that was freed once into a heap of the
/// calling thread, which keeps them: a process with many threads grows with each thread that meets a large block.
/// False where the C library's malloc has no such setting.
bool return_large_blocks(size_t nbytes);

}  // namespace gld

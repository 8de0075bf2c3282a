// Files in memory that processes of one host share.
//
// The system is called directly: an interpreter or a C library that was built for older systems, as those of conda and
// of portable Pythons are, has no function for this where the kernel has had one for years.
#pragma once
#include <cstdint>

namespace gld {

// Descriptor of a new file without a name, of a size that nobody can change, for this user alone; std::system_error.
int create_memory_file(const char* name, uint64_t bytes);
// Whether the size of a file can no longer change; std::system_error (EINVAL) where it is no memory file.
bool has_fixed_size(int fd);

}  // namespace gld

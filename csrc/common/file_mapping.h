// A file in this process's memory.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gld {

class FileMapping {
 public:
  // Maps so many bytes of a file from an offset on, a multiple of the page size. Others see what is written to it where
  // it is shared, and nobody else where it is not. It begins where the pages of a file in memory can be huge
  // (huge_pages.h), which the system sees to only where it makes huge pages by itself. Throws std::system_error.
  FileMapping(int fd, uint64_t offset, size_t nbytes, bool is_shared);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  char* data() const { return begin_; }
  size_t size() const { return nbytes_; }

 private:
  char* begin_;
  size_t nbytes_;
};

}  // namespace gld

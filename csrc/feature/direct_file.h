// Reads of a file past the page cache, by threads of their own.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gld {

// As pread(2); tests put others in its place.
using ReadFunction = std::function<ssize_t(int file, void* buffer, size_t count, off_t offset)>;

// Memory for direct reads. Grows, and never shrinks.
class ReadBuffer {
 public:
  static constexpr size_t kAlignment = 4096;
  // At least `count` bytes, aligned; what was in it is lost.
  char* of_size(size_t count);

 private:
  struct Free {
    void operator()(char* memory) const { ::operator delete(memory, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<char, Free> memory_;
  size_t size_ = 0;
};

// Bytes [begin, end) of a file.
struct FileRange {
  int64_t begin, end;
  const char* bytes = nullptr;  // once they were read
};

// A file that is read in blocks, with O_DIRECT where its file system has that: nothing of it lies in the page cache.
class DirectFile {
 public:
  // Throws StorageFailure where it cannot be opened.
  explicit DirectFile(std::string path, ReadFunction read = nullptr);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // bytes, when it was opened
  uint64_t inode() const { return inode_; }
  int64_t block() const { return block_; }
  bool is_direct() const { return is_direct_; }
  // The bytes [begin, end) in `buffer`, good until its next use. `what` begins the text of the StorageFailure where the
  // system refuses, or the file ends before `end`.
  const char* read(int64_t begin, int64_t end, ReadBuffer& buffer, const std::function<std::string()>& what) const;
  // Reads several ranges at once, so that the disk has many reads and the thread waits once. `bytes` of those that came
  // whole lie in `buffer`, good until its next use; they stay null where the file has no direct reads, the system
  // refuses or a read was short, which read() tells.
  void read_together(std::vector<FileRange>& ranges, ReadBuffer& buffer) const;
  static constexpr size_t kMostTogether = 32;

 private:
  bool open_direct();
  int64_t first_block(const FileRange& range) const { return range.begin / block_ * block_; }
  int64_t bytes_of_blocks(const FileRange& range) const {
    return (range.end - first_block(range) + block_ - 1) / block_ * block_;
  }

  const std::string path_;
  const ReadFunction read_;
  const bool is_pread_;
  int file_ = -1;
  int64_t size_ = 0, block_ = 4096;
  uint64_t inode_ = 0;
  bool is_direct_ = false;
};

// Has one of this process's threads for reads do `job`, with a buffer of that thread; urgent ones come first. The
// threads begin with the first jobs, serve all files, and live as long as the process. In a fork there are others.
// Where no thread can be had, the caller does the job. `job` must not throw.
void read_soon(std::function<void(ReadBuffer&)> job, bool is_urgent);
constexpr int kReadThreads = 16;  // measured: docs/disk.md

}  // namespace gld

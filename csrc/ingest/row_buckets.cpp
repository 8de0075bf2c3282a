#include "ingest/row_buckets.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/error.h"

namespace gld {
namespace {

constexpr int64_t kBlock = 1024;

// Copies items of `kSize` bytes, which the compiler then moves through registers.
template <int64_t kSize>
void copy_items(const char* from, char* const* targets, int64_t offset, int64_t count) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(targets[i] + offset, from + i * kSize, kSize);
}

void copy_items(const char* from, char* const* targets, int64_t offset, int64_t count, int64_t size) {
  switch (size) {
    case 1:
      return copy_items<1>(from, targets, offset, count);
    case 2:
      return copy_items<2>(from, targets, offset, count);
    case 4:
      return copy_items<4>(from, targets, offset, count);
    case 8:
      return copy_items<8>(from, targets, offset, count);
    default:
      for (int64_t i = 0; i < count; ++i) std::memcpy(targets[i] + offset, from + i * size, size);
  }
}

// Appends to a file, whole or with an error. Opened anew each time: there may be more buckets than a process may have
// files, and a write is long beside an open.
void append(const std::string& path, const char* bytes, int64_t count) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), path);
  int error = 0;
  while (count > 0 && error == 0) {
    const ssize_t written = ::write(fd, bytes, static_cast<size_t>(count));
    if (written >= 0) {
      bytes += written;
      count -= written;
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (::close(fd) != 0 && error == 0 && errno != EINTR) error = errno;
  if (error != 0) throw std::system_error(error, std::generic_category(), path);
}

}  // namespace

RowBuckets::RowBuckets(std::shared_ptr<const PartitionBook> book, std::string folder, int shift,
                       std::vector<int64_t> item_sizes, int64_t buffer_bytes)
    : book_(std::move(book)), folder_(std::move(folder)), shift_(shift), item_sizes_(std::move(item_sizes)) {
  if (shift_ < 0 || shift_ > 32) throw InvalidArgument(message("shift: expected 0 to 32, got ", shift_));
  record_bytes_ = sizeof(uint32_t);
  for (const int64_t size : item_sizes_) {
    if (size < 0) throw InvalidArgument(message("item_sizes: expected at least 0, got ", size));
    record_bytes_ += size;
  }
  capacity_ = std::max(buffer_bytes / record_bytes_, int64_t{1}) * record_bytes_;
  int64_t buckets = 0;
  for (int p = 0; p < book_->num_partitions(); ++p) {
    first_bucket_.push_back(buckets);
    buckets += (book_->size(p) + (int64_t{1} << shift_) - 1) >> shift_;
  }
  buffers_.resize(buckets);
  counts_.resize(buckets);
  targets_.resize(kBlock);
}

void RowBuckets::put(const Tensor& ids, const std::vector<Tensor>& columns, ThreadPool* pool) {
  check_index_vector(ids, "ids");
  if (columns.size() != item_sizes_.size())
    throw InvalidArgument(message("columns: expected ", item_sizes_.size(), ", got ", columns.size()));
  const int64_t count = ids.shape[0];
  for (size_t c = 0; c < columns.size(); ++c)
    if (static_cast<int64_t>(columns[c].nbytes()) != count * item_sizes_[c])
      throw InvalidArgument(message("columns[", c, "]: expected ", count, " items of ", item_sizes_[c], " bytes, got ",
                                    columns[c].nbytes(), " bytes"));
  owners_.resize(count);
  rows_.resize(count);
  book_->locate(ids, owners_.data(), rows_.data(), pool);
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t last = std::min(first + kBlock, count);
    int64_t begin = first;  // of those that have a place, but not their columns yet
    for (int64_t i = first; i < last; ++i) {
      const int64_t bucket = first_bucket_[owners_[i]] + (rows_[i] >> shift_);
      Buffer& buffer = buffers_[bucket];
      if (buffer.used + record_bytes_ > capacity_) {
        copy_columns(columns, begin, i - begin);  // they may lie in this buffer
        begin = i;
        write_out(bucket);
      }
      if (buffer.bytes == nullptr) buffer.bytes.reset(new char[capacity_]);
      char* const target = buffer.bytes.get() + buffer.used;
      buffer.used += record_bytes_;
      ++counts_[bucket];
      const auto row = static_cast<uint32_t>(rows_[i] & ((int64_t{1} << shift_) - 1));
      std::memcpy(target, &row, sizeof(row));
      targets_[i - begin] = target + sizeof(row);
    }
    copy_columns(columns, begin, last - begin);
  }
}

void RowBuckets::copy_columns(const std::vector<Tensor>& columns, int64_t first, int64_t count) const {
  int64_t offset = 0;
  for (size_t c = 0; c < columns.size(); ++c) {
    const int64_t size = item_sizes_[c];
    copy_items(columns[c].as<const char>() + first * size, targets_.data(), offset, count, size);
    offset += size;
  }
}

void RowBuckets::write_out(int64_t bucket) {
  Buffer& buffer = buffers_[bucket];
  if (buffer.used == 0) return;
  append(folder_ + "/" + std::to_string(bucket), buffer.bytes.get(), buffer.used);
  buffer.used = 0;
}

void RowBuckets::flush() {
  for (int64_t bucket = 0; bucket < num_buckets(); ++bucket) {
    write_out(bucket);
    buffers_[bucket].bytes.reset();
  }
}

}  // namespace gld

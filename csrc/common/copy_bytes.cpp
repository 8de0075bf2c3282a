#include "common/copy_bytes.h"

#include <cstdint>
#include <cstring>

#include "common/simd.h"

namespace gld {
namespace {

constexpr size_t kStreamedBytes = size_t{1} << 20;  // from here on, what a core has of its own cache does not hold it
constexpr size_t kLine = 64;
constexpr size_t kPiece = 16;

bool is_streamed(size_t nbytes) { return kCanStream && nbytes >= kStreamedBytes; }

// Bytes before the first whole line.
size_t before_line(const void* to) { return (0 - reinterpret_cast<uintptr_t>(to)) % kLine; }

// Writes whole lines past the caches, to the beginning of one; how many bytes these have.
size_t stream_lines(char* to, const char* from, size_t nbytes) {
  size_t at = 0;
  for (; at + kLine <= nbytes; at += kLine) {
    StreamedPiece pieces[kLine / kPiece];
    for (size_t i = 0; i < kLine / kPiece; ++i) pieces[i] = load_piece(from + at + i * kPiece);
    for (size_t i = 0; i < kLine / kPiece; ++i) stream_piece(to + at + i * kPiece, pieces[i]);
  }
  return at;
}

}  // namespace

void copy_bytes(void* to, const void* from, size_t nbytes) {
  if (!is_streamed(nbytes)) {
    if (nbytes > 0) std::memcpy(to, from, nbytes);
    return;
  }
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const size_t before = before_line(target);
  std::memcpy(target, source, before);
  const size_t at = before + stream_lines(target + before, source + before, nbytes - before);
  std::memcpy(target + at, source + at, nbytes - at);
  end_streaming();
}

bool ValueWriter::streams(int64_t count) { return is_streamed(static_cast<size_t>(count) * sizeof(int64_t)); }

void ValueWriter::pass_on() {
  int64_t passed = num_waiting_;
  if (is_streamed_) {
    passed = static_cast<int64_t>(before_line(to_) / sizeof(int64_t));
    std::memcpy(to_, waiting_, static_cast<size_t>(passed) * sizeof(int64_t));
    passed += static_cast<int64_t>(stream_lines(reinterpret_cast<char*>(to_ + passed),
                                                reinterpret_cast<const char*>(waiting_ + passed),
                                                static_cast<size_t>(num_waiting_ - passed) * sizeof(int64_t)) /
                                   sizeof(int64_t));
  } else {
    std::memcpy(to_, waiting_, static_cast<size_t>(passed) * sizeof(int64_t));
  }
  to_ += passed;
  num_waiting_ -= passed;
  std::memmove(waiting_, waiting_ + passed, static_cast<size_t>(num_waiting_) * sizeof(int64_t));
}

void ValueWriter::finish() {
  if (num_waiting_ > 0) std::memcpy(to_, waiting_, static_cast<size_t>(num_waiting_) * sizeof(int64_t));
  to_ += num_waiting_;
  num_waiting_ = 0;
  if (is_streamed_) end_streaming();
}

}  // namespace gld

#include "common/copy_bytes.h"

#include <cstdint>
#include <cstring>

#include "common/simd.h"

namespace gld {
namespace {

constexpr size_t kStreamedBytes = size_t{1} << 20;  // from here on, what a core has of its own cache does not hold it
constexpr size_t kLine = 64;
constexpr size_t kPiece = 16;

}  // namespace

void copy_bytes(void* to, const void* from, size_t nbytes) {
  if (!kCanStream || nbytes < kStreamedBytes) {
    if (nbytes > 0) std::memcpy(to, from, nbytes);
    return;
  }
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const size_t before = (0 - reinterpret_cast<uintptr_t>(target)) % kLine;
  std::memcpy(target, source, before);
  size_t at = before;
  for (; at + kLine <= nbytes; at += kLine) {
    StreamedPiece pieces[kLine / kPiece];
    for (size_t i = 0; i < kLine / kPiece; ++i) pieces[i] = load_piece(source + at + i * kPiece);
    for (size_t i = 0; i < kLine / kPiece; ++i) stream_piece(target + at + i * kPiece, pieces[i]);
  }
  std::memcpy(target + at, source + at, nbytes - at);
  end_streaming();
}

}  // namespace gld

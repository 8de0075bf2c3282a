// What the core asks of the instruction set; the only place that names one.
#pragma once
#include <cstring>

// GLD_SIMD in front of a function whose loops vectorise: the compiler emits it once for each listed instruction set
// and the loader picks one. Off under sanitizers, whose runtime is not up yet when the loader picks.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && defined(__linux__)
#define GLD_SIMD __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define GLD_SIMD
#endif

// In front of a helper that becomes part of each version of the GLD_SIMD function that calls it.
#define GLD_INLINE inline __attribute__((always_inline))

// Writes past the caches, 16 bytes at a time, to multiples of 16. They become visible to other threads in no order
// until end_streaming(). Where the machine has none, kCanStream is false and they are plain writes.
#if defined(__x86_64__)
#include <emmintrin.h>
namespace gld {
constexpr bool kCanStream = true;
using StreamedPiece = __m128i;
GLD_INLINE StreamedPiece load_piece(const char* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
GLD_INLINE void stream_piece(char* to, StreamedPiece piece) { _mm_stream_si128(reinterpret_cast<__m128i*>(to), piece); }
GLD_INLINE void end_streaming() { _mm_sfence(); }
}  // namespace gld
#else
namespace gld {
constexpr bool kCanStream = false;
struct StreamedPiece {
  char bytes[16];
};
GLD_INLINE StreamedPiece load_piece(const char* from) {
  StreamedPiece piece;
  std::memcpy(piece.bytes, from, sizeof(piece.bytes));
  return piece;
}
GLD_INLINE void stream_piece(char* to, StreamedPiece piece) { std::memcpy(to, piece.bytes, sizeof(piece.bytes)); }
GLD_INLINE void end_streaming() {}
}  // namespace gld
#endif

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

// Products of polynomials over GF(2), where the machine has them (has_carryless_product()): functions that use them
// have GLD_CARRYLESS in front. A Folded is 128 bits of a message, the first ones lowest.
#if defined(__x86_64__) && defined(__GNUC__)
#include <smmintrin.h>
#include <wmmintrin.h>
#define GLD_CARRYLESS __attribute__((target("pclmul,sse4.1")))
namespace gld {
using Folded = __m128i;
inline bool has_carryless_product() { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
GLD_CARRYLESS inline Folded folded_keys(unsigned long long first, unsigned long long last) {
  return _mm_set_epi64x(static_cast<long long>(last), static_cast<long long>(first));
}
// first 64 bits of `bits` times the first key, plus the last 64 times the last, plus `next`.
GLD_CARRYLESS inline Folded fold(Folded bits, Folded keys, Folded next) {
  const Folded products = _mm_xor_si128(_mm_clmulepi64_si128(bits, keys, 0x00), _mm_clmulepi64_si128(bits, keys, 0x11));
  return _mm_xor_si128(products, next);
}
GLD_CARRYLESS inline Folded load_bits(const unsigned char* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
GLD_CARRYLESS inline void store_bits(unsigned char* to, Folded bits) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bits);
}
GLD_CARRYLESS inline Folded add_to_first(Folded bits, unsigned int value) {
  return _mm_xor_si128(bits, _mm_cvtsi32_si128(static_cast<int>(value)));
}
}  // namespace gld
#else
#define GLD_CARRYLESS
namespace gld {
using Folded = StreamedPiece;
inline bool has_carryless_product() { return false; }
inline Folded folded_keys(unsigned long long, unsigned long long) { return {}; }
inline Folded fold(Folded bits, Folded, Folded) { return bits; }
inline Folded load_bits(const unsigned char*) { return {}; }
inline void store_bits(unsigned char*, Folded) {}
inline Folded add_to_first(Folded bits, unsigned int) { return bits; }
}  // namespace gld
#endif

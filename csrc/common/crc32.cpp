#include "common/crc32.h"

#include <array>
#include <cstring>

#include "common/simd.h"

namespace gld {
namespace {

// Bits are reflected: the highest is the coefficient of x^0.
constexpr uint32_t kPolynomial = 0xEDB88320;
constexpr size_t kFoldBytes = 16;
constexpr size_t kLanes = 4;  // products that do not wait for each other

constexpr uint32_t times_x(uint32_t value) { return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0); }

// x^power modulo the polynomial, at the place at which a product of reflected factors is one.
constexpr uint64_t key(int power) {
  uint32_t value = 0x80000000;
  for (int i = 0; i < power; ++i) value = times_x(value);
  return static_cast<uint64_t>(value) << 1;
}

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: what the byte b adds when k bytes come behind it.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t value = b;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value);
    tables[0][b] = value;
  }
  for (size_t k = 1; k < tables.size(); ++k)
    for (size_t b = 0; b < 256; ++b) tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xFF];
  return tables;
}

constexpr Tables kTables = make_tables();

// The state is the inverted checksum.
uint32_t table_state(const uint8_t* bytes, size_t nbytes, uint32_t state) {
  for (; nbytes >= 8; bytes += 8, nbytes -= 8) {
    uint32_t next = 0;
    for (size_t i = 0; i < 4; ++i) next ^= kTables[7 - i][(bytes[i] ^ (state >> (8 * i))) & 0xFF];
    for (size_t i = 4; i < 8; ++i) next ^= kTables[7 - i][bytes[i]];
    state = next;
  }
  for (; nbytes > 0; ++bytes, --nbytes) state = (state >> 8) ^ kTables[0][(*bytes ^ state) & 0xFF];
  return state;
}

// Of whole blocks of kLanes * kFoldBytes, one at least.
GLD_CARRYLESS uint32_t folded_state(const uint8_t* bytes, size_t nbytes, uint32_t state) {
  constexpr int kBlockBits = 8 * kLanes * kFoldBytes, kLaneBits = 8 * kFoldBytes;
  const Folded over_block = folded_keys(key(kBlockBits + 32), key(kBlockBits - 32));
  const Folded over_lane = folded_keys(key(kLaneBits + 32), key(kLaneBits - 32));
  Folded lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = load_bits(bytes + i * kFoldBytes);
  lanes[0] = add_to_first(lanes[0], state);
  for (size_t at = kLanes * kFoldBytes; at < nbytes; at += kLanes * kFoldBytes)
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = fold(lanes[i], over_block, load_bits(bytes + at + i * kFoldBytes));
  Folded rest = lanes[0];
  for (size_t i = 1; i < kLanes; ++i) rest = fold(rest, over_lane, lanes[i]);
  uint8_t last[kFoldBytes];
  store_bits(last, rest);
  return table_state(last, kFoldBytes, 0);  // congruent to all that was folded
}

}  // namespace

uint32_t crc32_by_tables(const void* bytes, size_t nbytes, uint32_t before) {
  return ~table_state(static_cast<const uint8_t*>(bytes), nbytes, ~before);
}

uint32_t crc32(const void* bytes, size_t nbytes, uint32_t before) {
  static const bool kCanFold = has_carryless_product();
  const auto* data = static_cast<const uint8_t*>(bytes);
  const size_t folded = kCanFold ? nbytes / (kLanes * kFoldBytes) * (kLanes * kFoldBytes) : 0;
  uint32_t state = ~before;
  if (folded > 0) state = folded_state(data, folded, state);
  return ~table_state(data + folded, nbytes - folded, state);
}

}  // namespace gld

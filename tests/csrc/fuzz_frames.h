// What must hold for whatever bytes arrive: neither the decoder of frames nor the reader of msgpack crashes or runs
// away; the decoder obeys its limits, and gives the same for every way of cutting the bytes into pieces.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gld::test {

// Whether the bytes are one value in msgpack; then all of it can be read, else it is refused.
bool is_msgpack(std::string_view bytes);

// Throws where something does not hold. The first two bytes choose the limits and the pieces, the rest is what a peer
// sends.
void check_any_bytes(const uint8_t* data, size_t size);

}  // namespace gld::test

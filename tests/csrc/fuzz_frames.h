// What must hold for whatever bytes arrive: the decoder of frames neither crashes nor runs away, obeys its limits, and
// gives the same for every way of cutting the bytes into pieces. Throws where it does not.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gld::test {

// The first two bytes choose the limits and the pieces, the rest is what a peer sends.
void check_any_bytes(const uint8_t* data, size_t size);

}  // namespace gld::test

// What must hold for finished batches whatever the other side does: of a client that asks for them, of a worker that
// makes them, of a client that they are lent to, and of a server that lends them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gld::test {

// Each takes the bytes for choices of what the other side does, and throws where something does not hold.

// Queries, calls off, and what goes on at the shelf meanwhile: each query is ended once or called off, and nothing of
// credit or slots is out at the end.
void check_any_fetches(const uint8_t* data, size_t size);
// What a worker announces, and writes into its ring's memory: nobody waits in vain for its batches.
void check_any_announcements(const uint8_t* data, size_t size);
// Frames of a client, some of whose batches are lent to it: no query is answered twice, and all slots come back.
void check_any_borrower(const uint8_t* data, size_t size);
// Frames of a server that was asked for batches: all who wait are told, and no place is given back more often than it
// was lent.
void check_any_lender(const uint8_t* data, size_t size);

// One of these, which the first byte chooses.
void check_any_batches(const uint8_t* data, size_t size);

}  // namespace gld::test

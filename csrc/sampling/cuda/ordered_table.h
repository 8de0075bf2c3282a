// A hash table that many threads fill at once, and that knows of each key which of its arrivals came first.
//
// Arrivals are numbered. Each writes its number to its key's slot where no lower one is there, so that after all have,
// the slot holds the first, whatever the order of the threads. Then the first arrivals are counted in order and replace
// what stands in their slots by local ids; these are lower than any arrival, and later arrivals leave them in place.
#pragma once
#include <cstdint>

#include "common/atomics.h"
#include "common/host_device.h"
#include "common/rng.h"

namespace gld {

struct OrderedTable {
  struct Slot {
    uint64_t key, value;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // every byte 0xFF: what the table is filled with
  static constexpr uint64_t kArrival = uint64_t{1} << 63;

  Slot* slots;
  uint64_t mask;  // number of slots, a power of two above that of keys, less 1

  // Twice as many as keys at least, so that a search ends soon.
  static uint64_t num_slots_for(int64_t max_keys) {
    uint64_t num_slots = 2;
    while (num_slots < 2 * static_cast<uint64_t>(max_keys)) num_slots *= 2;
    return num_slots;
  }

  // The slot of a key, which an arrival claims where nobody has, and its number is entered there.
  GLD_HOST_DEVICE int64_t arrive(int64_t key, int64_t arrival) const {
    const uint64_t wanted = static_cast<uint64_t>(key);
    uint64_t at = mix64(wanted) & mask;
    for (;; at = (at + 1) & mask) {
      uint64_t found = atomic_read(&slots[at].key);
      if (found == kEmpty) found = atomic_claim(&slots[at].key, kEmpty, wanted);
      if (found == kEmpty || found == wanted) break;
    }
    // Most arrivals at a node of many neighbors come late: a read, which the cache has, spares them the write.
    const uint64_t mine = kArrival | static_cast<uint64_t>(arrival);
    if (mine < atomic_read(&slots[at].value)) atomic_lower(&slots[at].value, mine);
    return static_cast<int64_t>(at);
  }

  // The number of a key's first arrival, or -1 where it never came; when all have, before the first local id.
  GLD_HOST_DEVICE int64_t first_arrival(int64_t key) const {
    const uint64_t wanted = static_cast<uint64_t>(key);
    for (uint64_t at = mix64(wanted) & mask;; at = (at + 1) & mask) {
      if (slots[at].key == wanted) return static_cast<int64_t>(slots[at].value & ~kArrival);
      if (slots[at].key == kEmpty) return -1;
    }
  }

  GLD_HOST_DEVICE bool came_first(int64_t slot, int64_t arrival) const {
    return atomic_read(&slots[slot].value) == (kArrival | static_cast<uint64_t>(arrival));
  }

  // Of a slot whose first arrival was given its local id.
  GLD_HOST_DEVICE int64_t local_id(int64_t slot) const { return static_cast<int64_t>(atomic_read(&slots[slot].value)); }
  GLD_HOST_DEVICE void set_local_id(int64_t slot, int64_t local) const {
    atomic_write(&slots[slot].value, static_cast<uint64_t>(local));
  }
};

}  // namespace gld

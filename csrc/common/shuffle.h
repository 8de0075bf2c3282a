// The order of an epoch: a keyed bijection of [0, n) of which any part is found alone, in O(1) memory, for host and
// device.
//
// Up to kSmall inputs it is the shuffle of Fisher and Yates (Durstenfeld, CACM 7, 1964) with the numbers of a stream,
// so that each order is as likely as every other. Few rounds of a Feistel network over few bits are not that, but
// beyond kSmall they are hard to tell from it, and they find a place without going through all of them.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "common/permutation.h"
#include "common/rng.h"

namespace gld {

class Shuffle {
 public:
  static constexpr int64_t kSmall = 1024;

  // 0 <= n <= Permutation::kMaxSize; any key.
  GLD_HOST_DEVICE Shuffle(int64_t n, uint64_t key) : large_(n, key), stream_(key, n) {}

  GLD_HOST_DEVICE int64_t size() const { return large_.size(); }
  GLD_HOST_DEVICE bool is_small() const { return size() <= kSmall; }

  // Which input comes at a place, 0 <= place < n. In O(n) steps where n is small: where several places are wanted, the
  // host has take_shuffled().
  GLD_HOST_DEVICE int64_t at(int64_t place) const {
    if (!is_small()) return large_.forward(place);
    // Steps n - 1 to 1 exchange the inputs at a step's place and at its partner's. A place is in no step after its own,
    // so that following it back begins there.
    int64_t input = place;
    for (int64_t step = place > 0 ? place : 1; step < size(); ++step) {
      const int64_t other = partner(step);
      input = input == step ? other : input == other ? step : input;
    }
    return input;
  }

  // With which place, up to its own, a step of the small shuffle exchanges.
  GLD_HOST_DEVICE int64_t partner(int64_t step) const { return stream_.below(step, step + 1); }

  GLD_HOST_DEVICE const Permutation& large() const { return large_; }

 private:
  Permutation large_;
  NodeStream stream_;
};

#ifndef __CUDACC__
// out[i] = shuffle.at(places[i]) for many places, several times faster than one by one. Every place must lie in [0, n);
// `out` may be `places`.
void take_shuffled(const Shuffle& shuffle, const int64_t* places, int64_t* out, int64_t count);
#endif

}  // namespace gld

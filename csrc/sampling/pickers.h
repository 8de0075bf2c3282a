// Which of a node's neighbors are picked: positions within its row, as a pure function of the node's stream.
//
// One picker per method, for host and device. `fanout` -1 takes all. Positions come in the order of the draws.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "common/rng.h"

namespace gld {

constexpr int64_t kTakeAll = -1;

GLD_HOST_DEVICE inline int64_t pick_count(int64_t degree, int64_t fanout, bool replace) {
  if (fanout == kTakeAll) return degree;
  if (replace) return degree > 0 ? fanout : 0;
  return degree < fanout ? degree : fanout;
}

template <typename Position>
GLD_HOST_DEVICE inline void pick_all(int64_t degree, Position* positions) {
  for (int64_t i = 0; i < degree; ++i) positions[i] = static_cast<Position>(i);
}

template <typename Position>
GLD_HOST_DEVICE inline void pick_with_replacement(NodeStream stream, int64_t degree, int64_t fanout,
                                                  Position* positions) {
  for (int64_t i = 0; i < fanout; ++i) positions[i] = static_cast<Position>(stream.below(i, degree));
}

// A uniform subset of `fanout` < `degree` positions by Floyd's algorithm (Bentley, Floyd: "A sample of brilliance",
// CACM 1987): draw i is uniform in [0, degree - fanout + i]; a position that is taken already is replaced by the top of
// the range. `contains(i, position)` says whether one of the first i picks is `position`, and `record(i, position)` is
// told each pick; how they remember does not change the result.
template <typename Position, typename Contains, typename Record>
GLD_HOST_DEVICE inline void pick_without_replacement(NodeStream stream, int64_t degree, int64_t fanout,
                                                     Position* positions, Contains contains, Record record) {
  for (int64_t i = 0; i < fanout; ++i) {
    const int64_t top = degree - fanout + i;
    int64_t position = stream.below(i, top + 1);
    if (contains(i, position)) position = top;
    positions[i] = static_cast<Position>(position);
    record(i, position);
  }
}

// The same, remembering by a scan of the picks so far: fastest for the fan-outs people use.
template <typename Position>
GLD_HOST_DEVICE inline void pick_without_replacement(NodeStream stream, int64_t degree, int64_t fanout,
                                                     Position* positions) {
  pick_without_replacement(
      stream, degree, fanout, positions,
      [positions](int64_t count, int64_t position) {
        bool found = false;  // no early exit: the loop vectorises
        for (int64_t j = 0; j < count; ++j) found |= static_cast<int64_t>(positions[j]) == position;
        return found;
      },
      [](int64_t, int64_t) {});
}

}  // namespace gld

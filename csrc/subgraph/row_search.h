// Looking for one neighbor in a row.
#pragma once
#include <algorithm>
#include <cstdint>

#include "graph/csr.h"

namespace gld {

// The first position in [begin, end) of the ascending `values` that holds at least `wanted`. Doubles its steps from
// `begin`, so that a walk through a whole row costs the logarithms of the gaps (Bentley, Yao: "An almost optimal
// algorithm for unbounded searching", 1976).
template <typename Value>
int64_t gallop(const Value* values, int64_t begin, int64_t end, Value wanted) {
  int64_t step = 1;
  while (begin + step < end && values[begin + step] < wanted) {
    begin += step;
    step *= 2;
  }
  return std::lower_bound(values + begin, values + std::min(begin + step + 1, end), wanted) - values;
}

}  // namespace gld

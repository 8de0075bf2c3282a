#include "common/shuffle.h"

#include <utility>

namespace gld {

void take_shuffled(const Shuffle& shuffle, const int64_t* places, int64_t* out, int64_t count) {
  if (!shuffle.is_small()) return permute(shuffle.large(), places, out, count);
  int64_t inputs[Shuffle::kSmall];
  for (int64_t i = 0; i < shuffle.size(); ++i) inputs[i] = i;
  for (int64_t step = shuffle.size() - 1; step > 0; --step) std::swap(inputs[step], inputs[shuffle.partner(step)]);
  for (int64_t i = 0; i < count; ++i) out[i] = inputs[places[i]];
}

}  // namespace gld

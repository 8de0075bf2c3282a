// The GIL around work whose length depends on its arguments.
#pragma once
#include <cstdint>
#include <optional>

#include "bindings/gil.h"

namespace gld {

// So many ids are looked up at random before that takes longer than a turn with the GIL is worth.
constexpr int64_t kManyIds = 4096;

// Releases the GIL while it lives, if the work is long. Short work keeps it: who takes it back may have to wait for
// milliseconds, for another thread that computes.
class LongWork {
 public:
  explicit LongWork(bool is_long) {
    if (is_long) released_.emplace();
  }

 private:
  std::optional<GilReleased> released_;
};

}  // namespace gld

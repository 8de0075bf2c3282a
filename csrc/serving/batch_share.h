// Which batches of a run a producer makes: graphlearn_dist.sampler.epochs.schedule.BatchShare, as far as who serves
// them must know it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gld::serving {

struct BatchShare {
  std::vector<int64_t> single;              // batches of the run before its range, ascending
  int64_t start = 0, stop = 0, stride = 1;  // the range
  int64_t size = 1;                         // batches of a group
  int64_t first = 0, step = 1;              // groups of the share
  int64_t begin = 0;                        // what comes before this position of the run is not in it
  std::string shown;                        // for people

  // How many groups of the share come before that of a batch; nothing where the batch is not in it.
  std::optional<int64_t> group_of(int64_t index) const {
    int64_t position;
    const auto found = std::lower_bound(single.begin(), single.end(), index);
    if (found != single.end() && *found == index) {
      position = found - single.begin();
    } else if (index >= start && index < stop && (index - start) % stride == 0) {
      position = static_cast<int64_t>(single.size()) + (index - start) / stride;
    } else {
      return std::nullopt;
    }
    const int64_t ahead = position / size - first;
    if (ahead < 0 || ahead % step != 0 || position < begin) return std::nullopt;
    return ahead / step;
  }
};

}  // namespace gld::serving

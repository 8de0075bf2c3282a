// Which batches of a run a producer makes: graphlearn_dist.sampler.epochs.schedule.BatchShare, as far as who serves
// them must know it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
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
    const std::optional<int64_t> position = position_of(index);
    if (!position || *position < begin) return std::nullopt;
    const int64_t ahead = *position / size - first;
    if (ahead < 0 || ahead % step != 0) return std::nullopt;
    return ahead / step;
  }

  // Where the groups are made by `workers` in turn: how many batches the one who makes this one makes before it, and
  // with it and behind it in its group. Only of batches of the share.
  std::pair<int64_t, int64_t> place_of(int64_t index, int64_t workers) const {
    const int64_t position = *position_of(index), group = position / size;
    // Groups of the same worker before this one, but for those that lie before `begin`.
    const int64_t num_before = std::min((group - first) / step / workers, (group - begin / size) / step / workers);
    const int64_t oldest = group - num_before * step * workers;
    const int64_t cut = std::max<int64_t>(0, begin - oldest * size);
    const int64_t all = static_cast<int64_t>(single.size()) + (stop > start ? (stop - 1 - start) / stride + 1 : 0);
    return {num_before * size + position % size - cut, std::min(size - position % size, all - position)};
  }

 private:
  // Of a batch of the run.
  std::optional<int64_t> position_of(int64_t index) const {
    const auto found = std::lower_bound(single.begin(), single.end(), index);
    if (found != single.end() && *found == index) return found - single.begin();
    if (index < start || index >= stop || (index - start) % stride != 0) return std::nullopt;
    return static_cast<int64_t>(single.size()) + (index - start) / stride;
  }
};

}  // namespace gld::serving

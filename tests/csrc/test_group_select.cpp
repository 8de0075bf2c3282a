// The smallest of many numbers, found by a group of threads: those of a sort.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "arrays.h"
#include "check.h"
#include "common/cuda/group_select.h"
#include "host_executor.h"
#include "sampling/pickers.h"

namespace gld::test {
namespace {

constexpr uint64_t kNone = 3;  // stands for no number

struct LastFirst {
  uint64_t number(int64_t i) const { return ~static_cast<uint64_t>(i); }
  uint64_t largest(int64_t) const { return ~uint64_t{0}; }
};

template <typename Tie>
struct TakeSmallest {
  const std::vector<uint64_t>& keys;
  int64_t wanted;
  std::vector<std::pair<uint64_t, int64_t>>& taken;

  int64_t num_groups() const { return 1; }
  template <typename Group>
  void operator()(Group& group, int64_t) const {
    const auto key_of = [this](int64_t i, uint64_t* key) { return (*key = keys[i]) != kNone; };
    take_smallest(group, static_cast<int64_t>(keys.size()), wanted, key_of, Tie{},
                  [this](int64_t slot, int64_t i, uint64_t key) { taken.at(slot) = {key, i}; });
  }
};

void check_keys(const std::vector<uint64_t>& keys) {
  ThreadPool pool(1);
  for (bool last_first : {false, true}) {
    std::vector<std::pair<uint64_t, int64_t>> all;
    for (size_t i = 0; i < keys.size(); ++i)
      if (keys[i] != kNone) all.emplace_back(keys[i], static_cast<int64_t>(i));
    std::sort(all.begin(), all.end(), [&](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : last_first ? a.second > b.second : a.second < b.second;
    });
    const int64_t count = static_cast<int64_t>(all.size());
    for (int64_t wanted : {int64_t{1}, int64_t{2}, count / 2, count - 1, count}) {
      if (wanted < 1 || wanted > count) continue;
      std::vector<std::pair<uint64_t, int64_t>> expected(all.begin(), all.begin() + wanted), taken(wanted);
      HostExecutor executor(pool, wanted);
      if (last_first)
        executor.for_each_group(1, TakeSmallest<LastFirst>{keys, wanted, taken});
      else
        executor.for_each_group(1, TakeSmallest<InRowOrder>{keys, wanted, taken});
      std::sort(taken.begin(), taken.end());
      std::sort(expected.begin(), expected.end());
      CHECK(taken == expected);
    }
  }
}

std::vector<uint64_t> drawn(int64_t count, int64_t bound, uint64_t factor, uint64_t key) {
  std::vector<uint64_t> out;
  for (int64_t number : random_numbers(count, bound, key)) out.push_back(static_cast<uint64_t>(number) * factor);
  return out;
}

TEST("group select: numbers that differ early, late, or not at all, fewer and more than threads") {
  constexpr int64_t kLarge = std::numeric_limits<int64_t>::max();
  for (int64_t count : {int64_t{1}, int64_t{2}, int64_t{255}, int64_t{256}, int64_t{257}, int64_t{5000}}) {
    check_keys(drawn(count, kLarge, 2, 91));
    check_keys(drawn(count, 50, 1, 92));  // some are kNone
    check_keys(drawn(count, 3, uint64_t{1} << 62, 93));
    check_keys(drawn(count, 1, 0, 94));
    check_keys(drawn(count, 700, 0x10001, 95));
    check_keys(std::vector<uint64_t>(count, ~uint64_t{0}));
  }
}

TEST("group select: numbers in the order of values") {
  const double values[] = {-std::numeric_limits<double>::infinity(),
                           -1e300,
                           -2.5,
                           -1e-310,
                           0,
                           std::numeric_limits<double>::denorm_min(),
                           1,
                           1e300,
                           std::numeric_limits<double>::infinity()};
  for (double a : values)
    for (double b : values) {
      CHECK_EQUAL(order_of(a) < order_of(b), a < b);
      CHECK_EQUAL(order_of(a) == order_of(b), a == b);
    }
  CHECK_EQUAL(order_of(-0.0), order_of(0.0));
}

}  // namespace
}  // namespace gld::test

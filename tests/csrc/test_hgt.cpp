// Budgets of HGT sampling against plain maps, and their picks against plain sorting.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "arrays.h"
#include "check.h"
#include "sampling/hgt_budgets.h"
#include "sampling/weighted_picks.h"

namespace gld::test {
namespace {

// One type, as the header defines it.
struct Plain {
  std::map<int64_t, double> budgets;
  std::set<int64_t> taken;

  void add(const std::vector<int64_t>& counts, const std::vector<int64_t>& neighbors) {
    size_t at = 0;
    for (int64_t count : counts)
      for (int64_t i = 0; i < count; ++i, ++at)
        if (taken.count(neighbors[at]) == 0) budgets[neighbors[at]] += 1.0 / static_cast<double>(count);
  }
  std::vector<int64_t> take(const std::vector<int64_t>& ids) {
    std::vector<int64_t> fresh;
    for (int64_t id : ids) {
      budgets.erase(id);
      if (taken.insert(id).second) fresh.push_back(id);
    }
    return fresh;
  }
  std::vector<int64_t> pick(int64_t count, uint64_t key) {
    std::vector<std::pair<double, int64_t>> clocks;
    for (auto [id, budget] : budgets) clocks.emplace_back(exponential_of(NodeStream(key, id)) / (budget * budget), id);
    std::sort(clocks.begin(), clocks.end());
    clocks.resize(std::min<size_t>(clocks.size(), count));
    std::vector<int64_t> ids;
    for (auto [clock, id] : clocks) ids.push_back(id);
    take(ids);
    return ids;
  }
};

TEST("HGT budgets: sums and picks are those of plain maps, with any tables and threads") {
  const std::vector<int64_t> num_nodes = {3000, 200, 0};
  for (int64_t most_dense : {int64_t{0}, int64_t{1000}, kDenseRelabelLimit})
    for (int threads = 1; threads <= 3; ++threads) {
      ThreadPool pool(threads);
      HgtBudgets budgets(num_nodes, most_dense);
      for (uint64_t batch = 0; batch < 3; ++batch) {
        budgets.begin();
        std::vector<Plain> plain(num_nodes.size());
        const std::vector<int64_t> seeds = random_numbers(50, 60, batch);
        CHECK(values<int64_t>(budgets.take(0, ids(seeds))) == plain[0].take(seeds));
        for (uint64_t step = 0; step < 4; ++step) {
          std::vector<DrawnNeighbors> drawn;
          for (int type : {0, 1, 0}) {
            const uint64_t key = 100 * batch + 10 * step + drawn.size();
            const std::vector<int64_t> counts = random_numbers(120, 40, key);
            int64_t total = 0;
            for (int64_t count : counts) total += count;
            // The third part has few neighbors, whose budgets are nearly all there is.
            const int64_t bound = drawn.size() == 2 ? 5 : num_nodes[type];
            const std::vector<int64_t> neighbors = random_numbers(total, bound, key + 7);
            const bool narrow = drawn.empty();
            drawn.push_back(
                {type, ids(counts),
                 narrow ? ids32(std::vector<int32_t>(neighbors.begin(), neighbors.end())) : ids(neighbors)});
            plain[type].add(counts, neighbors);
          }
          budgets.add(drawn, pool);
          // Few, some, all that are left, none at all.
          const std::vector<int64_t> counts = {step == 3 ? std::numeric_limits<int64_t>::max() : 100,
                                               step == 1 ? 0 : 30, 5};
          const std::vector<uint64_t> keys = {batch + step, batch + step + 1, 3};
          const std::vector<Tensor> picked = budgets.pick(counts, keys, pool);
          CHECK_EQUAL(picked.size(), num_nodes.size());
          for (size_t type = 0; type < picked.size(); ++type)
            CHECK(values<int64_t>(picked[type]) == plain[type].pick(counts[type], keys[type]));
          CHECK_EQUAL(picked[2].numel(), 0);
        }
      }
    }
}

TEST("HGT budgets: a node that was taken has none, and none comes twice") {
  ThreadPool pool(1);
  HgtBudgets budgets({10});
  CHECK(values<int64_t>(budgets.take(0, ids32({3, 1, 3}))) == (std::vector<int64_t>{3, 1}));
  CHECK(values<int64_t>(budgets.take(0, ids({1, 5}))) == (std::vector<int64_t>{5}));
  budgets.add({{0, ids({3, 0, 1}), ids({1, 3, 7, 7})}}, pool);
  CHECK(values<int64_t>(budgets.pick({4}, {0}, pool)[0]) == (std::vector<int64_t>{7}));
  budgets.add({{0, ids({1}), ids({7})}}, pool);
  CHECK_EQUAL(budgets.pick({4}, {0}, pool)[0].numel(), 0);
  budgets.begin();
  budgets.add({{0, ids({1}), ids({7})}}, pool);
  CHECK(values<int64_t>(budgets.pick({4}, {0}, pool)[0]) == (std::vector<int64_t>{7}));
}

TEST("HGT budgets: what makes no sense is refused") {
  ThreadPool pool(1);
  HgtBudgets budgets({10, 4});
  CHECK_THROWS(UnknownId, budgets.take(0, ids({10})));
  CHECK_THROWS(UnknownId, budgets.take(1, ids({-1})));
  CHECK_THROWS(InvalidArgument, budgets.take(2, ids({0})));
  CHECK_THROWS(UnknownId, budgets.add({{1, ids({1}), ids({4})}}, pool));
  CHECK_THROWS(InvalidArgument, budgets.add({{0, ids({2}), ids({4})}}, pool));
  CHECK_THROWS(InvalidArgument, budgets.add({{0, ids({-1, 2}), ids({4})}}, pool));
  CHECK_THROWS(InvalidArgument, budgets.add({{0, ids({}), ids({4})}}, pool));
  CHECK_THROWS(InvalidArgument, budgets.add({{-1, ids({1}), ids({4})}}, pool));
  CHECK_THROWS(InvalidArgument, budgets.pick({1}, {1}, pool));
  CHECK_THROWS(InvalidArgument, budgets.pick({1, -1}, {1, 1}, pool));
  CHECK_THROWS(InvalidArgument, HgtBudgets({-1}));
}

}  // namespace
}  // namespace gld::test

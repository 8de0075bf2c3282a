// Induced edges, edge look-up, drawn ids and personalised PageRank: equal whatever the threads, and on the edges of
// their arrays.
#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "arrays.h"
#include "check.h"
#include "sampling/negative.h"
#include "sampling/ppr.h"
#include "subgraph/induced.h"

namespace gld::test {
namespace {

TEST("edges of nodes in their order: neighbors, and the position of the node of each") {
  const Tensor pairs = pair_with_nodes(ids({2, 0, 3}), ids({7, 8, 4, 5, 6}));
  CHECK(pairs.shape == (std::vector<int64_t>{2, 5}));
  CHECK(values<int64_t>(pairs) == (std::vector<int64_t>{7, 8, 4, 5, 6, 0, 0, 2, 2, 2}));
  CHECK_EQUAL(pair_with_nodes(ids({0, 0}), ids({})).numel(), 0);
  CHECK_THROWS(InvalidArgument, pair_with_nodes(ids({1}), ids({3, 4})));
  CHECK_THROWS(InvalidArgument, pair_with_nodes(ids({3}), ids({3, 4})));
  CHECK_THROWS(InvalidArgument, pair_with_nodes(ids({-1, 3}), ids({3, 4})));
}

TEST("induced edges: those that a plain loop finds, with any number of threads") {
  ThreadPool one(1);
  const int64_t num_nodes = 2000;
  const Csr csr = random_csr(num_nodes, 30000, 21, one);
  const std::vector<int64_t> asked = random_numbers(1500, num_nodes, 22);
  // Few members make the long row of node 0 one that is searched; many make it one that is scanned.
  for (int64_t num_members : {0, 1, 12, 1000}) {
    const std::vector<int64_t> members = random_numbers(num_members, num_nodes, 23);
    std::map<int64_t, int64_t> place;
    for (int64_t i = num_members; i-- > 0;) place[members[i]] = i;
    std::vector<int64_t> cols, edges;
    for (int64_t id : asked)
      for (int64_t e = csr.indptr.as<int64_t>()[id]; e < csr.indptr.as<int64_t>()[id + 1]; ++e) {
        const auto found = place.find(csr.indices.as<int32_t>()[e]);
        if (found == place.end()) continue;
        cols.push_back(found->second);
        edges.push_back(csr.edge_ids.as<int32_t>()[e]);
      }
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      const InducedEdges out = induced_edges(csr, ids(asked), {}, ids(members), true, pool);
      CHECK(values<int64_t>(out.cols) == cols);
      CHECK(values<int64_t>(out.edge_ids) == edges);
      CHECK(!induced_edges(csr, ids(asked), {}, ids(members), false, pool).edge_ids.defined());
    }
  }
}

TEST("induced edges: unknown ids, from any thread") {
  ThreadPool pool(3);
  const Csr csr = random_csr(100, 1000, 24, pool);
  CHECK_THROWS(UnknownId, induced_edges(csr, ids({1, 100}), {}, ids({1}), true, pool));
  CHECK_THROWS(UnknownId, induced_edges(csr, ids({1}), ids({-1}), ids({1}), true, pool));
  CHECK_THROWS(UnknownId, induced_edges(csr, ids({1}), {}, ids({-1}), true, pool));
  CHECK_THROWS(InvalidArgument, induced_edges(csr, ids({1}), ids({1, 2}), ids({1}), true, pool));
}

TEST("edge look-up: every pair, in rows sorted by neighbor and by time") {
  ThreadPool one(1);
  const int64_t num_nodes = 60;
  Csr csr = random_csr(num_nodes, 700, 31, one);
  std::set<std::pair<int64_t, int64_t>> edges;
  for (int64_t v = 0; v < num_nodes; ++v)
    for (int64_t e = csr.indptr.as<int64_t>()[v]; e < csr.indptr.as<int64_t>()[v + 1]; ++e)
      edges.emplace(v, csr.indices.as<int32_t>()[e]);
  std::vector<int64_t> row, col;
  for (int64_t v = 0; v < num_nodes; ++v)
    for (int64_t w = 0; w < num_nodes; ++w) row.push_back(v), col.push_back(w);
  for (bool by_time : {false, true}) {
    if (by_time) {  // neighbors descend in each row
      for (int64_t v = 0; v < num_nodes; ++v)
        std::reverse(csr.indices.as<int32_t>() + csr.indptr.as<int64_t>()[v],
                     csr.indices.as<int32_t>() + csr.indptr.as<int64_t>()[v + 1]);
      csr.times = ids(std::vector<int64_t>(csr.num_edges(), 0));
    }
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      const Tensor found = has_edges(csr, ids(row), ids(col), pool);
      for (size_t i = 0; i < row.size(); ++i) CHECK_EQUAL(found.as<uint8_t>()[i], edges.count({row[i], col[i]}));
      const InducedEdges induced = induced_edges(csr, ids({0}), {}, ids({1}), true, pool);
      int64_t between = 0;
      for (int64_t e = 0; e < csr.indptr.as<int64_t>()[1]; ++e) between += csr.indices.as<int32_t>()[e] == 1;
      CHECK_EQUAL(induced.counts.as<int64_t>()[0], between);
    }
  }
}

TEST("drawn ids: below the bound, whatever the key; extreme weights stay inside") {
  const std::vector<int64_t> positions = random_numbers(2000, INT64_MAX, 41);
  for (int64_t bound : {int64_t{1}, int64_t{3}, INT64_MAX}) {
    for (int64_t id : values<int64_t>(random_ids(7, ids(positions), bound, {}, {}))) CHECK(id >= 0 && id < bound);
  }
  ThreadPool pool(1);
  for (double size : {5e-324, 1e-300, 1.0, 1e300, 1.7e308}) {
    const Tensor weights = tensor(std::vector<double>{0, size, 0, size, -0.0}, {Kind::kFloat, 64});
    const Tensor sums = sum_weights(ids({0, 5}), weights, pool).first;
    for (int64_t id : values<int64_t>(random_ids(8, ids(positions), 5, weights, sums))) CHECK(id == 1 || id == 3);
  }
  CHECK_THROWS(InvalidArgument, random_ids(8, ids({1}), 0, {}, {}));
}

TEST("pagerank: equal with any number of threads and callers") {
  ThreadPool one(1);
  const Csr csr = random_csr(800, 6000, 51, one);
  const Tensor seeds = ids(random_numbers(60, 800, 52));
  const PprScores alone = ppr_topk(csr, seeds, 0.15, 1e-4, 20, one);
  CHECK(alone.nodes.numel() > 60);
  for (int threads = 2; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    std::vector<PprScores> answers(2);
    std::thread other([&] { answers[1] = ppr_topk(csr, seeds, 0.15, 1e-4, 20, pool); });
    answers[0] = ppr_topk(csr, seeds, 0.15, 1e-4, 20, pool);
    other.join();
    for (const PprScores& answer : answers)
      CHECK(same(answer.nodes, alone.nodes) && same(answer.scores, alone.scores) && same(answer.counts, alone.counts));
  }
  CHECK_THROWS(UnknownId, ppr_topk(csr, ids({800}), 0.15, 1e-4, 20, one));
}

}  // namespace
}  // namespace gld::test

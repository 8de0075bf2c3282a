// Building compressed rows.
#include <algorithm>
#include <tuple>

#include "arrays.h"
#include "check.h"

namespace gld::test {
namespace {

TEST("csr: rows are sorted by neighbor and edge id, with any number of threads") {
  const int64_t num_nodes = 6000, num_edges = 40000;
  const std::vector<int64_t> row = random_numbers(num_edges, num_nodes, 1), col = random_numbers(num_edges, 50, 2);
  std::vector<std::tuple<int64_t, int64_t, int64_t>> sorted;
  for (int64_t e = 0; e < num_edges; ++e) sorted.emplace_back(row[e], col[e], e);
  std::sort(sorted.begin(), sorted.end());
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    const Csr csr = build_csr(ids(row), ids(col), {}, num_nodes, 50, pool);
    validate_csr(csr, pool);
    CHECK(csr.indices.dtype == kInt32);
    for (int64_t e = 0; e < num_edges; ++e) {
      CHECK_EQUAL(csr.indices.as<int32_t>()[e], std::get<1>(sorted[e]));
      CHECK_EQUAL(csr.edge_ids.as<int32_t>()[e], std::get<2>(sorted[e]));
    }
  }
}

TEST("csr: rows are taken in the order asked") {
  ThreadPool pool(2);
  const Csr csr = random_csr(300, 4000, 5, pool);
  const std::vector<int64_t> rows = random_numbers(700, 300, 6);
  const Csr taken = take_rows(csr, ids(rows), pool);
  const int64_t* indptr = csr.indptr.as<int64_t>();
  const int64_t* taken_indptr = taken.indptr.as<int64_t>();
  for (size_t i = 0; i < rows.size(); ++i) {
    CHECK_EQUAL(taken_indptr[i + 1] - taken_indptr[i], indptr[rows[i] + 1] - indptr[rows[i]]);
    for (int64_t j = 0; j < taken_indptr[i + 1] - taken_indptr[i]; ++j)
      CHECK_EQUAL(taken.indices.as<int32_t>()[taken_indptr[i] + j], csr.indices.as<int32_t>()[indptr[rows[i]] + j]);
  }
}

TEST("csr: what cannot be a graph is refused, from any thread") {
  ThreadPool pool(3);
  CHECK_THROWS(UnknownId, build_csr(ids({0, 9}), ids({0, 0}), {}, 2, 2, pool));
  CHECK_THROWS(UnknownId, build_csr(ids({0, 1}), ids({0, -1}), {}, 2, 2, pool));
  CHECK_THROWS(InvalidArgument, build_csr(ids({0, 1}), ids({0}), {}, 2, 2, pool));
  CHECK_THROWS(InvalidArgument, make_csr({ids({0, 3}), ids({0}), {}, 2, {}, {}, {}, {}}));
  const Csr unsorted = make_csr({ids({0, 2}), ids({1, 0}), {}, 2, {}, {}, {}, {}});
  CHECK_THROWS(InvalidArgument, validate_csr(unsorted, pool));
  const Csr csr = random_csr(5, 20, 1, pool);
  CHECK_THROWS(UnknownId, take_rows(csr, ids({5}), pool));
}

TEST("csr: weights and times go with their edges, with any number of threads") {
  const int64_t num_nodes = 5000, num_edges = 30000;
  const std::vector<int64_t> row = random_numbers(num_edges, num_nodes, 11), col = random_numbers(num_edges, 90, 12);
  const std::vector<int64_t> times = random_numbers(num_edges, 40, 13);
  std::vector<float> weights(num_edges);
  for (int64_t e = 0; e < num_edges; ++e) weights[e] = static_cast<float>(e % 7);
  const EdgeData data{{}, tensor(weights, {Kind::kFloat, 32}), ids(times)};
  ThreadPool one(1);
  const Csr expected = with_sums(build_csr(ids(row), ids(col), data, num_nodes, 90, one), one);
  for (int64_t e = 0; e < num_edges; ++e) {
    const int32_t id = expected.edge_ids.as<int32_t>()[e];
    CHECK_EQUAL(expected.times.as<int64_t>()[e], times[id]);
    CHECK_EQUAL(expected.weights.as<float>()[e], weights[id]);
    CHECK_EQUAL(expected.indices.as<int32_t>()[e], col[id]);
  }
  for (int threads = 2; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    const Csr csr = with_sums(build_csr(ids(row), ids(col), data, num_nodes, 90, pool), pool);
    validate_csr(csr, pool);
    CHECK(same(csr.edge_ids, expected.edge_ids) && same(csr.times, expected.times));
    CHECK(same(csr.weight_sums, expected.weight_sums) && same(csr.positive_counts, expected.positive_counts));
    const std::vector<int64_t> rows = random_numbers(9000, num_nodes, 14);
    const Csr taken = take_rows(csr, ids(rows), pool), again = take_rows(csr, ids(rows), one);
    CHECK(same(taken.times, again.times) && same(taken.weights, again.weights));
  }
}

TEST("csr: a graph without edges") {
  ThreadPool pool(2);
  const Csr csr = build_csr(ids({}), ids({}), {}, 3, 0, pool);
  validate_csr(csr, pool);
  CHECK_EQUAL(csr.num_edges(), 0);
  CHECK_EQUAL(take_rows(csr, ids({2, 0}), pool).num_rows(), 2);
}

}  // namespace
}  // namespace gld::test

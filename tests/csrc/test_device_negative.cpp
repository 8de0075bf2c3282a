// The kernels of negative sampling, run on the host: what rounds of random_ids() and has_edges() give, bit by bit.
#include <vector>

#include "arrays.h"
#include "check.h"
#include "host_executor.h"
#include "sampling/cuda/negative_steps.h"
#include "typed_graph.h"

namespace gld::test {
namespace {

constexpr uint64_t kKey = 77;

struct End {
  int64_t num_nodes, stride, first;
  Tensor weights{}, sums{}, times{}, limits{};
  int64_t earliest = -1;
};

struct Request {
  const Csr& edges;
  int64_t num_slots, num_trials;
  End targets;
  End sources{};
  Tensor given_sources{};
  bool is_strict = true, rows_are_sources = true;
};

struct Drawn {
  std::vector<int64_t> sources, targets;
  std::vector<uint8_t> is_open;
};

// Rounds over all slots that are open, one end after the other.
class Rounds {
 public:
  explicit Rounds(const Request& request) : request_(request), pool_(2), out_{fresh(), fresh(), {}} {
    source_open_.assign(request.num_slots, !request.given_sources.defined());
    target_open_.assign(request.num_slots, true);
    if (request.given_sources.defined()) out_.sources = values<int64_t>(request.given_sources);
  }

  Drawn run() {
    for (int64_t trial = 0; trial < request_.num_trials; ++trial) {
      draw(request_.sources, source_open_, out_.sources, trial);
      draw(request_.targets, target_open_, out_.targets, trial);
      if (request_.is_strict) open_edges();
    }
    for (int64_t i = 0; i < request_.num_slots; ++i) {
      if (!request_.is_strict && source_open_[i]) out_.sources[i] = request_.sources.earliest;
      if (!request_.is_strict && target_open_[i]) out_.targets[i] = request_.targets.earliest;
      out_.is_open.push_back(request_.is_strict && (source_open_[i] || target_open_[i]) ? 1 : 0);
    }
    return out_;
  }

 private:
  std::vector<int64_t> fresh() const { return std::vector<int64_t>(request_.num_slots); }

  void draw(const End& end, std::vector<bool>& open, std::vector<int64_t>& nodes, int64_t trial) const {
    for (int64_t i = 0; i < request_.num_slots; ++i) {
      if (!open[i]) continue;
      const int64_t position = end.stride * (trial * request_.num_slots + i) + end.first;
      nodes[i] = random_ids(kKey, ids({position}), end.num_nodes, end.weights, end.sums).as<int64_t>()[0];
      open[i] = end.times.defined() && end.times.as<int64_t>()[nodes[i]] > end.limits.as<int64_t>()[i];
    }
  }

  void open_edges() {
    for (int64_t i = 0; i < request_.num_slots; ++i) {
      if (source_open_[i] || target_open_[i]) continue;
      const Tensor source = ids({out_.sources[i]}), target = ids({out_.targets[i]});
      const bool out = request_.rows_are_sources;
      if (has_edges(request_.edges, out ? source : target, out ? target : source, pool_).as<uint8_t>()[0] == 0)
        continue;
      source_open_[i] = !request_.given_sources.defined();
      target_open_[i] = true;
    }
  }

  const Request& request_;
  ThreadPool pool_;
  Drawn out_;
  std::vector<bool> source_open_, target_open_;
};

NegativeEnd kernel_end(const End& end, std::vector<int64_t>& nodes) {
  return {end.num_nodes,
          {end.sums.as<double>(), WeightReader(end.weights)},
          end.times.as<int64_t>(),
          end.limits.as<int64_t>(),
          end.earliest,
          end.stride,
          end.first,
          nodes.data()};
}

int64_t check_request(const Request& request) {
  const Drawn expected = Rounds(request).run();
  ThreadPool pool(3);
  for (uint64_t order : {31, 32}) {
    HostExecutor executor(pool, order);
    Drawn found = expected;
    for (auto* nodes : {&found.targets, &found.sources}) nodes->assign(request.num_slots, -5);
    found.is_open.assign(request.num_slots, 9);
    run_asking(
        executor,
        DrawNegatives{kernel_end(request.sources, found.sources), kernel_end(request.targets, found.targets),
                      !request.given_sources.defined(), IdReader(request.given_sources),
                      request.is_strict ? EdgeSet(request.edges) : EdgeSet(), request.is_strict,
                      request.rows_are_sources, kKey, request.num_slots, request.num_trials, found.is_open.data()});
    if (request.given_sources.defined()) found.sources = expected.sources;
    CHECK_EQUAL(executor.num_launches(), 1);  // whatever the number of slots and of trials
    CHECK(found.sources == expected.sources);
    CHECK(found.targets == expected.targets);
    CHECK(found.is_open == expected.is_open);
  }
  int64_t num_open = 0;
  for (uint8_t open : expected.is_open) num_open += open;
  return num_open;
}

// A twentieth of all pairs of 60 nodes are edges; node 0 has edges to most.
Csr small_graph(ThreadPool& pool, bool with_times) {
  std::vector<int64_t> row = random_numbers(240, 60, 41), col = random_numbers(240, 60, 42);
  for (int64_t i = 0; i < 56; ++i) row[i] = 0, col[i] = i;
  EdgeData data;
  if (with_times) data.times = ids(random_numbers(240, 100, 43));
  return build_csr(ids(row), ids(col), data, 60, 60, pool);
}

End weighted_end(int64_t count, int64_t stride, int64_t first) {
  std::vector<double> numbers;
  for (int64_t weight : random_numbers(count, 4, 44)) numbers.push_back(static_cast<double>(weight) / 3);
  numbers[7] = 1e-30;  // has no whole unit
  const Tensor weights = tensor(numbers, {Kind::kFloat, 64});
  ThreadPool pool(1);
  return {count, stride, first, weights, sum_weights(ids({0, count}), weights, pool).first};
}

TEST("device negatives: pairs are those of the rounds, strict or not, in graphs by sources or by targets") {
  ThreadPool pool(1);
  for (bool with_times : {false, true}) {
    const Csr graph = small_graph(pool, with_times);
    for (bool strict : {false, true})
      for (bool rows_are_sources : {false, true}) {
        check_request({graph, 500, 5, {60, 2, 1}, {60, 2, 0}, {}, strict, rows_are_sources});
        check_request({graph, 500, 2, weighted_end(60, 2, 1), weighted_end(60, 2, 0), {}, strict, true});
      }
  }
}

TEST("device negatives: targets for given sources; a slot of a source with edges to nearly all stays open") {
  ThreadPool pool(1);
  const Csr graph = small_graph(pool, false);
  const std::vector<int64_t> sources = random_numbers(400, 60, 45);
  check_request({graph, 400, 5, {60, 1, 0}, {}, ids(sources)});
  check_request({graph, 400, 5, weighted_end(60, 1, 0), {}, ids(sources), false});
  CHECK(check_request({graph, 40, 2, {60, 1, 0}, {}, ids(std::vector<int64_t>(40, 0))}) > 0);
}

TEST("device negatives: no node is later than its slot allows, or it is the earliest") {
  ThreadPool pool(1);
  const Csr graph = small_graph(pool, false);
  std::vector<int64_t> times = random_numbers(60, 50, 46);
  times[13] = -1;
  const Tensor limits = ids(random_numbers(300, 30, 47)), none = ids(std::vector<int64_t>(300, -2));
  for (bool strict : {false, true}) {
    const End sources{60, 2, 0, {}, {}, ids(times), limits, 13}, targets{60, 2, 1, {}, {}, ids(times), limits, 13};
    check_request({graph, 300, 3, targets, sources, {}, strict});
    check_request({graph, 300, 3, {60, 2, 1}, sources, {}, strict});  // of one end
    const int64_t num_open =
        check_request({graph, 300, 3, {60, 2, 1, {}, {}, ids(times), none, 13}, sources, {}, strict});
    CHECK_EQUAL(num_open, strict ? 300 : 0);
  }
}

TEST("device negatives: pairs that are edges, narrow and wide ids; pairs outside the graph are told") {
  ThreadPool pool(2);
  for (bool with_times : {false, true}) {
    Csr graph = small_graph(pool, with_times);
    const Tensor rows = ids(random_numbers(3000, 60, 48)), cols = ids(random_numbers(3000, 60, 49));
    const Tensor expected = has_edges(graph, rows, cols, pool);
    for (bool wide : {false, true}) {
      std::vector<int64_t> neighbors;
      for (int64_t i = 0; wide && i < graph.num_edges(); ++i) neighbors.push_back(graph.indices.as<int32_t>()[i]);
      if (wide) graph.indices = ids(neighbors);
      std::vector<uint8_t> found(3000, 7);
      uint64_t status = ~uint64_t{0};
      HostExecutor executor(pool, 33);
      run_asking(executor, HasEdges{EdgeSet(graph), IdReader(rows), IdReader(cols), 3000, found.data(), &status});
      CHECK(found == values<uint8_t>(expected));
      CHECK_EQUAL(status, ~uint64_t{0});
    }
    std::vector<uint8_t> found(4, 7);
    uint64_t status = ~uint64_t{0};
    HostExecutor executor(pool, 34);
    run_asking(executor, HasEdges{EdgeSet(graph), IdReader(ids({0, 5, 60, -1})), IdReader(ids32({0, 60, 0, 0})), 4,
                                  found.data(), &status});
    CHECK(found == (std::vector<uint8_t>{1, 0, 0, 0}));
    CHECK_EQUAL(status, 1u);
  }
}

TEST("device negatives: a group of threads reads long rows in the order of times") {
  ThreadPool pool(2);
  const Csr graph = typed_graph({Method::kUniform, false, TimeRule::kBefore}, pool).knows;
  CHECK(!EdgeSet(graph).is_ascending);
  const int64_t* indptr = graph.indptr.as<int64_t>();
  CHECK(indptr[8] - indptr[7] > 4 * kGroupThreads);
  const Tensor rows = ids(std::vector<int64_t>(kUsers, 7)), cols = ids([] {
                                                              std::vector<int64_t> all(kUsers);
                                                              for (int64_t i = 0; i < kUsers; ++i) all[i] = i;
                                                              return all;
                                                            }());
  for (uint64_t order : {35, 36}) {
    std::vector<uint8_t> found(kUsers, 7);
    uint64_t status = ~uint64_t{0};
    HostExecutor executor(pool, order);
    run_asking(executor, HasEdges{EdgeSet(graph), IdReader(rows), IdReader(cols), kUsers, found.data(), &status});
    CHECK(found == values<uint8_t>(has_edges(graph, rows, cols, pool)));
  }
  check_request({graph, 300, 6, {kUsers, 1, 0}, {}, ids(std::vector<int64_t>(300, 7))});
}

}  // namespace
}  // namespace gld::test

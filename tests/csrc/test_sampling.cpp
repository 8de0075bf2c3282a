// Batches: equal with any number of threads and callers, sampled here or added from elsewhere.
#include <thread>

#include "arrays.h"
#include "check.h"
#include "sampling/batch_builder.h"
#include "sampling/neighbor_sampler.h"

namespace gld::test {
namespace {

constexpr int64_t kUsers = 1500, kItems = 400;

struct Typed {
  Csr likes, knows;  // users to items, users to users
};

Typed typed_graph(ThreadPool& pool) {
  return {build_csr(ids(random_numbers(12000, kUsers, 61)), ids(random_numbers(12000, kItems, 62)), {}, kUsers, kItems,
                    pool),
          random_csr(kUsers, 9000, 63, pool)};
}

BatchBuilder make_builder() { return BatchBuilder({kUsers, kItems}, {{0, 1}, {0, 0}}); }

// Three hops from a hundred users; `here` samples with the builder, otherwise hops are sampled apart and added.
SampledSubgraph sample(BatchBuilder& builder, const Typed& graph, DrawMethod how, int64_t fanout, bool disjoint,
                       bool here, ThreadPool& pool) {
  const Tensor seeds = ids(random_numbers(100, kUsers, 64));
  builder.begin(100, -1, true, disjoint);
  builder.add_seeds(0, seeds, {}, false);
  for (uint64_t hop = 0; hop < 3; ++hop) {
    for (int type = 0; type < 2; ++type) {
      const Csr& csr = type == 0 ? graph.likes : graph.knows;
      const HopDraw draw{fanout, how, absorb(hop, type), true};
      if (here) {
        builder.sample_hop(type, csr, draw, pool);
      } else {
        const OneHop found = sample_neighbors(csr, builder.frontier(0), draw, pool);
        builder.add_hop(type, found.counts, found.neighbors, found.edge_ids);
      }
    }
    builder.next_hop();
  }
  return builder.finish();
}

bool equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!same(a[i], b[i])) return false;
  return true;
}

bool equal(const SampledSubgraph& a, const SampledSubgraph& b) {
  return equal(a.nodes, b.nodes) && equal(a.rows, b.rows) && equal(a.cols, b.cols) && equal(a.edge_ids, b.edge_ids) &&
         equal(a.trees, b.trees) && a.num_sampled_nodes == b.num_sampled_nodes &&
         a.num_sampled_edges == b.num_sampled_edges;
}

TEST("batches: equal with any number of threads, sampled here or elsewhere") {
  ThreadPool one(1);
  const Typed graph = typed_graph(one);
  for (bool disjoint : {false, true})
    for (int64_t fanout : {3, 120, -1})
      for (bool replace : {false, true}) {
        if (fanout == -1 && (replace || disjoint)) continue;
        BatchBuilder builder = make_builder();
        DrawMethod how;
        how.replace = replace;
        const SampledSubgraph expected = sample(builder, graph, how, fanout, disjoint, true, one);
        CHECK(expected.rows[0].numel() > 300);
        for (int threads = 1; threads <= 4; ++threads) {
          ThreadPool pool(threads);
          CHECK(equal(sample(builder, graph, how, fanout, disjoint, true, pool), expected));
          CHECK(equal(sample(builder, graph, how, fanout, disjoint, false, pool), expected));
        }
      }
}

TEST("batches: several callers share the graph and the threads") {
  ThreadPool pool(3);
  const Typed graph = typed_graph(pool);
  BatchBuilder first = make_builder();
  const SampledSubgraph expected = sample(first, graph, {}, 5, false, true, pool);
  std::vector<int> right(3, 0);
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c)
    callers.emplace_back([&, c] {
      BatchBuilder builder = make_builder();
      for (int round = 0; round < 5; ++round)
        right[c] += equal(sample(builder, graph, {}, 5, false, true, pool), expected);
    });
  for (std::thread& caller : callers) caller.join();
  for (int count : right) CHECK_EQUAL(count, 5);
}

TEST("batches: edges point into the batch, and ids are those of the graph") {
  ThreadPool pool(2);
  const Typed graph = typed_graph(pool);
  BatchBuilder builder = make_builder();
  const SampledSubgraph batch = sample(builder, graph, {}, 4, false, true, pool);
  const std::vector<int64_t> users = random_numbers(12000, kUsers, 61), items = random_numbers(12000, kItems, 62);
  for (int64_t e = 0; e < batch.rows[0].numel(); ++e) {
    const int64_t item = batch.rows[0].as<int64_t>()[e], user = batch.cols[0].as<int64_t>()[e];
    CHECK(item >= 0 && item < batch.nodes[1].numel() && user >= 0 && user < batch.nodes[0].numel());
    const int64_t id = batch.edge_ids[0].as<int64_t>()[e];  // a position in the lists that the graph was built from
    CHECK_EQUAL(batch.nodes[0].as<int64_t>()[user], users[id]);
    CHECK_EQUAL(batch.nodes[1].as<int64_t>()[item], items[id]);
  }
}

TEST("batches: what cannot be sampled is refused") {
  ThreadPool pool(2);
  const Typed graph = typed_graph(pool);
  BatchBuilder builder = make_builder();
  builder.begin(2, -1, false, false);
  CHECK_THROWS(UnknownId, builder.add_seeds(0, ids({kUsers}), {}, false));
  builder.begin(2, -1, false, false);
  builder.add_seeds(0, ids({3, 4}), {}, false);
  CHECK_THROWS(InvalidArgument, builder.sample_hop(0, graph.knows, {3, {}, 1, false}, pool));
  CHECK_THROWS(InvalidArgument, builder.sample_hop(0, graph.likes, {0, {}, 1, false}, pool));
  CHECK_THROWS(InvalidArgument, builder.add_hop(0, ids({1}), ids({0}), {}));
  CHECK_THROWS(UnknownId, builder.add_hop(0, ids({1, 0}), ids({kItems}), {}));
}

}  // namespace
}  // namespace gld::test

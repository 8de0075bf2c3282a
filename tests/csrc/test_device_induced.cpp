// The kernels that find induced edges, run on the host: the edges are those of the CPU, bit by bit.
#include <algorithm>

#include "arrays.h"
#include "batch_memory.h"
#include "check.h"
#include "host_executor.h"
#include "subgraph/cuda/induced_chain.h"
#include "subgraph/induced.h"
#include "typed_graph.h"

namespace gld::test {
namespace {

struct Found {
  std::vector<InducedEdges> edges;  // per edge type
  std::vector<uint64_t> status;     // per node type
  int num_launches = 0;
};

Tensor copy_of(const int64_t* first, int64_t count) { return ids({first, first + count}); }

Found from_kernels(const InducedShape& shape, const InducedInput& input, ThreadPool& pool, uint64_t order) {
  const InducedLayout layout(shape);
  const Memory result(layout.num_bytes), scratch(layout.num_scratch_bytes);
  HostExecutor executor(pool, order);
  InducedChain<HostExecutor> chain(shape, layout, input, {result.begin(), scratch.begin()}, executor);
  chain.count();
  Found found;
  std::vector<InducedOutput> out;
  for (size_t type = 0; type < layout.edges.size(); ++type) {
    const int64_t total = result.at<int64_t>(layout.totals)[type];
    const int64_t num_rows = shape.num_members[shape.edge_types[type].seed_type];
    out.push_back({empty({total}, kInt64), empty({total}, kInt64)});
    found.edges.push_back(
        {copy_of(result.at<int64_t>(layout.edges[type].counts), num_rows), out.back().cols, out.back().edge_ids});
  }
  chain.write(out);
  const uint64_t* status = result.at<uint64_t>(layout.status);
  found.status.assign(status, status + shape.num_members.size());
  found.num_launches = executor.num_launches();
  return found;
}

// Launches, with what fills memory, are 13 at most, however many nodes there are: what has nothing to do is not
// launched.
void check_members(const Typed& graph, const std::vector<Tensor>& members) {
  ThreadPool pool(3);
  const InducedShape shape{{kUsers, kItems}, {members[0].numel(), members[1].numel()}, {{0, 1}, {0, 0}}};
  const InducedInput input{{graph.likes, graph.knows}, members};
  std::vector<InducedEdges> expected;
  for (size_t type = 0; type < 2; ++type)
    expected.push_back(induced_edges(input.graphs[type], members[shape.edge_types[type].seed_type], {},
                                     members[shape.edge_types[type].neighbor_type], true, pool));
  for (uint64_t order : {21, 22, 23}) {
    const Found found = from_kernels(shape, input, pool, order);
    CHECK(found.num_launches <= 13);
    for (size_t type = 0; type < 2; ++type) {
      CHECK(same(found.edges[type].counts, expected[type].counts));
      CHECK(same(found.edges[type].cols, expected[type].cols));
      CHECK(same(found.edges[type].edge_ids, expected[type].edge_ids));
      CHECK_EQUAL(found.status[type], OrderedTable::kEmpty);
    }
  }
}

std::vector<int64_t> distinct(int64_t count, int64_t bound) {
  const Permutation order(bound, 5);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(order.forward(i));
  return out;
}

TEST("device induced: edges of both types are those of the CPU; few nodes, many, all") {
  ThreadPool one(1);
  const Typed graph = typed_graph({}, one);
  check_members(graph, {ids(distinct(40, kUsers)), ids(distinct(30, kItems))});
  check_members(graph, {ids(distinct(700, kUsers)), ids(distinct(90, kItems))});
  check_members(graph, {ids(distinct(kUsers, kUsers)), ids(distinct(kItems, kItems))});
}

TEST("device induced: rows longer than a tile, narrow and wide ids, edge ids that are positions") {
  ThreadPool one(1);
  Typed graph = typed_graph({}, one);
  const int64_t* indptr = graph.knows.indptr.as<int64_t>();
  CHECK(indptr[8] - indptr[7] > kScanTile);
  std::vector<int64_t> wide;
  for (int32_t neighbor : values<int32_t>(graph.knows.indices)) wide.push_back(neighbor);
  graph.knows.indices = ids(wide);
  graph.likes.edge_ids = {};
  check_members(graph, {ids32({9, 7, 1499, 3}), ids32({0, 399})});
  check_members(graph, {ids(distinct(500, kUsers)), ids32({})});
}

TEST("device induced: the first of members that repeat stands for all; no members; rows in the order of times") {
  ThreadPool one(1);
  const Typed graph = typed_graph({Method::kUniform, false, TimeRule::kBefore}, one);
  check_members(graph, {ids(random_numbers(900, kUsers, 31)), ids(random_numbers(900, kItems, 32))});
  check_members(graph, {ids({}), ids({})});
}

TEST("device induced: a node outside the graph is told, and has no edges") {
  ThreadPool pool(2);
  const Typed graph = typed_graph({}, pool);
  for (int64_t bad : {kUsers, int64_t{-1}}) {
    const Tensor users = ids({7, 3, bad, 7, bad}), items = ids({0, 1});
    const Found found = from_kernels({{kUsers, kItems}, {5, 2}, {{0, 1}, {0, 0}}},
                                     {{graph.likes, graph.knows}, {users, items}}, pool, 4);
    CHECK_EQUAL(found.status[0], 2u);
    CHECK_EQUAL(found.status[1], OrderedTable::kEmpty);
    CHECK_EQUAL(found.edges[1].counts.as<int64_t>()[2], 0);
    CHECK(found.edges[1].counts.as<int64_t>()[0] > 0);
  }
}

}  // namespace
}  // namespace gld::test

// Batches: equal with any number of threads and callers, sampled here from graphs whole or in pieces, or added from
// elsewhere.
#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "arrays.h"
#include "check.h"
#include "sampling/batch_builder.h"
#include "sampling/cuda/node_picker.h"
#include "sampling/neighbor_sampler.h"
#include "typed_graph.h"

namespace gld::test {
namespace {

enum class Way { kWhole, kInPieces, kAdded, kAnswered };

// The rows of each partition of a random book, apart.
CsrPieces in_pieces(const Csr& csr, ThreadPool& pool) {
  const auto book = PartitionBook::permuted(csr.num_rows(), 3, 17);
  std::vector<std::shared_ptr<const Csr>> pieces;
  for (int p = 0; p < 3; ++p) {
    const Csr piece = take_rows(csr, book->global_ids(p, &pool), pool);
    pieces.push_back(std::make_shared<Csr>(piece.weights.defined() ? with_sums(piece, pool) : piece));
  }
  return make_csr_pieces(book, std::move(pieces));
}

// Entries in the order of a split; undefined of an undefined vector.
Tensor grouped(const Tensor& vector, const Split& split) {
  if (!vector.defined()) return {};
  std::vector<int64_t> out;
  for (const int64_t position : values<int64_t>(split.positions)) out.push_back(vector.as<int64_t>()[position]);
  return ids(out);
}

Tensor part_of(Tensor vector, const Split& split, int partition) {
  if (!vector.defined()) return {};
  const int64_t* bounds = split.offsets.as<int64_t>();
  vector.data = static_cast<char*>(vector.data) + bounds[partition] * static_cast<int64_t>(vector.dtype.size());
  vector.shape = {bounds[partition + 1] - bounds[partition]};
  return vector;
}

// What the partitions of a random book, each with its rows, answer about a frontier.
void add_answers(BatchBuilder& builder, int type, const Csr& csr, const HopDraw& draw, ThreadPool& pool) {
  const CsrPieces graph = in_pieces(csr, pool);
  const HopNodes nodes = builder.frontier(0);
  const Split full = split_by_owner(nodes.ids, *graph.book, &pool);
  const Tensor trees = grouped(nodes.trees, full), times = grouped(nodes.times, full);
  const Split split = split_by_owner(nodes.ids, *graph.book, &pool, /*is_lean=*/true);
  std::vector<NeighborPart> parts;
  for (int p = 0; p < 3; ++p) {
    const HopNodes asked{part_of(split.ids, split, p), part_of(split.rows, split, p), part_of(trees, split, p),
                         part_of(times, split, p)};
    OneHop found = sample_neighbors(*graph.pieces[p], asked, draw, pool);
    parts.push_back({found.counts, found.neighbors, found.edge_ids});
  }
  builder.add_hop(type, split, parts, draw.fanout);
}

// The batch with the edges that it lacks, each type's written to memory at some place within a line.
SampledSubgraph with_edges(SampledSubgraph batch) {
  for (size_t type = 0; type < batch.edge_index.size(); ++type) {
    if (batch.edge_index[type].defined()) continue;
    const int64_t count = batch.unwritten[type].size();
    Tensor pairs = empty({2 * count + 1}, kInt64);
    pairs.data = pairs.as<int64_t>() + count % 2;
    pairs.shape = {2, count};
    batch.unwritten[type].write(pairs.as<int64_t>());
    batch.edge_index[type] = pairs;
    pairs.shape = {count};
    batch.rows[type] = pairs;
    pairs.data = pairs.as<int64_t>() + count;
    batch.cols[type] = pairs;
  }
  return batch;
}

BatchBuilder make_builder() { return BatchBuilder({kUsers, kItems}, {{0, 1}, {0, 0}}); }

// Three hops from a hundred users, sampled by the builder, or apart and added to it.
SampledSubgraph sample(BatchBuilder& builder, const Typed& graph, DrawMethod how, int64_t fanout, bool disjoint,
                       Way way, ThreadPool& pool) {
  const Tensor seeds = ids(random_numbers(100, kUsers, 67));
  const Tensor times = how.times == TimeRule::kIgnore ? Tensor{} : ids(random_numbers(100, kTimes, 68));
  builder.begin(100, -1, true, disjoint);
  builder.add_seeds(0, seeds, times, false);
  for (uint64_t hop = 0; hop < 3; ++hop) {
    for (int type = 0; type < 2; ++type) {
      const Csr& csr = type == 0 ? graph.likes : graph.knows;
      const HopDraw draw{fanout, how, absorb(hop, type), true};
      if (way == Way::kWhole) {
        builder.sample_hop(type, csr, draw, pool);
      } else if (way == Way::kInPieces) {
        builder.sample_hop(type, in_pieces(csr, pool), draw, pool);
      } else if (way == Way::kAnswered) {
        add_answers(builder, type, csr, draw, pool);
      } else {
        const OneHop found = sample_neighbors(csr, builder.frontier(0), draw, pool);
        builder.add_hop(type, found.counts, found.neighbors, found.edge_ids);
      }
    }
    builder.next_hop();
  }
  return with_edges(builder.finish(/*leaves_edges=*/way != Way::kWhole));
}

void check_method(DrawMethod how, bool disjoint) {
  ThreadPool one(1);
  const Typed graph = typed_graph(how, one);
  BatchBuilder builder = make_builder(), sparse({kUsers, kItems}, {{0, 1}, {0, 0}}, kItems);  // users are more
  for (int64_t fanout : {3, 120, -1}) {
    if (fanout == -1 && disjoint && how.times == TimeRule::kIgnore) continue;  // large, and the same as the others
    const SampledSubgraph expected = sample(builder, graph, how, fanout, disjoint, Way::kWhole, one);
    CHECK(expected.rows[0].numel() > 100);
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      for (Way way : {Way::kWhole, Way::kInPieces, Way::kAdded, Way::kAnswered}) {
        CHECK(equal(sample(builder, graph, how, fanout, disjoint, way, pool), expected));
        CHECK(equal(sample(sparse, graph, how, fanout, disjoint, way, pool), expected));
      }
    }
  }
}

TEST("batches: equal with any number of threads, sampled here or elsewhere") {
  for (bool disjoint : {false, true}) {
    for (const DrawMethod& how : every_method(TimeRule::kIgnore)) check_method(how, disjoint);
  }
}

TEST("batches: the same with times") {
  for (const DrawMethod& how : every_method(TimeRule::kBefore)) check_method(how, true);
  check_method({Method::kUniform, false, TimeRule::kLatest}, true);
}

TEST("batches: several callers share the graph and the threads") {
  ThreadPool pool(3);
  const Typed graph = typed_graph({}, pool);
  BatchBuilder first = make_builder();
  const SampledSubgraph expected = sample(first, graph, {}, 5, false, Way::kWhole, pool);
  std::vector<int> right(3, 0);
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c)
    callers.emplace_back([&, c] {
      BatchBuilder builder = make_builder();
      for (int round = 0; round < 5; ++round)
        right[c] += equal(sample(builder, graph, {}, 5, false, Way::kWhole, pool), expected);
    });
  for (std::thread& caller : callers) caller.join();
  for (int count : right) CHECK_EQUAL(count, 5);
}

TEST("batches: edges point into the batch, and ids are those of the graph") {
  ThreadPool pool(2);
  const Typed graph = typed_graph({}, pool);
  BatchBuilder builder = make_builder();
  const SampledSubgraph batch = sample(builder, graph, {}, 4, false, Way::kWhole, pool);
  const std::vector<int64_t> users = random_numbers(kLikes, kUsers, 61), items = random_numbers(kLikes, kItems, 62);
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
  const Typed graph = typed_graph({}, pool);
  BatchBuilder builder = make_builder();
  builder.begin(2, -1, false, false);
  CHECK_THROWS(UnknownId, builder.add_seeds(0, ids({kUsers}), {}, false));
  builder.begin(2, -1, false, false);
  builder.add_seeds(0, ids({3, 4}), {}, false);
  CHECK_THROWS(InvalidArgument, builder.sample_hop(0, graph.knows, {3, {}, 1, false}, pool));
  CHECK_THROWS(InvalidArgument, builder.sample_hop(0, graph.likes, {-2, {}, 1, false}, pool));
  CHECK_THROWS(InvalidArgument, builder.add_hop(0, ids({1}), ids({0}), {}));
  CHECK_THROWS(UnknownId, builder.add_hop(0, ids({1, 0}), ids({kItems}), {}));
}

TEST("batches: hops that are sampled here and hops that are added make one batch") {
  ThreadPool pool(2);
  const Typed graph = typed_graph({}, pool);
  BatchBuilder builder = make_builder();
  const SampledSubgraph expected = sample(builder, graph, {}, 4, false, Way::kWhole, pool);
  builder.begin(100, -1, true, false);
  builder.add_seeds(0, ids(random_numbers(100, kUsers, 67)), {}, false);
  for (uint64_t hop = 0; hop < 3; ++hop) {
    for (int type = 0; type < 2; ++type) {
      const Csr& csr = type == 0 ? graph.likes : graph.knows;
      const HopDraw draw{4, {}, absorb(hop, type), true};
      if ((hop + type) % 2 == 0)
        builder.sample_hop(type, csr, draw, pool);
      else
        add_answers(builder, type, csr, draw, pool);
    }
    builder.next_hop();
  }
  CHECK(equal(builder.finish(), expected));
}

TEST("batches: edges are written alike by any number of threads") {
  constexpr int64_t kNodes = 50'000;
  BatchBuilder builder({kNodes}, {{0, 0}});
  builder.begin(kNodes, -1, false, false);
  std::vector<int64_t> seeds(kNodes);
  std::iota(seeds.rbegin(), seeds.rend(), 0);
  builder.add_seeds(0, ids(seeds), {}, false);
  std::vector<int64_t> counts = random_numbers(kNodes, 5, 72);
  counts[20'000] = 40'000;
  std::vector<int64_t> cols;
  for (int64_t i = 0; i < kNodes; ++i) cols.insert(cols.end(), counts[i], i);
  const std::vector<int64_t> neighbors = random_numbers(static_cast<int64_t>(cols.size()), kNodes, 73);
  builder.add_hop(0, ids(counts), ids(neighbors), {});
  builder.next_hop();
  for (int threads = 0; threads <= 4; ++threads) {
    ThreadPool pool(std::max(threads, 1));
    const SampledSubgraph made = builder.finish(false, threads == 0 ? nullptr : &pool);
    CHECK(values<int64_t>(made.cols[0]) == cols);
    std::vector<int64_t> found = values<int64_t>(made.rows[0]);
    for (int64_t& local : found) local = made.nodes[0].as<int64_t>()[local];
    CHECK(found == neighbors);
  }
}

TEST("batches: edges are left unwritten only where they are many, and shared until they are written") {
  constexpr int64_t kMany = int64_t{1} << 15;
  BatchBuilder builder({kMany + 2}, {{0, 0}});
  std::vector<SampledSubgraph> made;
  std::vector<std::vector<int64_t>> expected_rows;
  for (const int64_t count : {kMany - 1, kMany, kMany + 1}) {
    builder.begin(2, -1, false, false);
    builder.add_seeds(0, ids({kMany, kMany + 1}), {}, false);
    // Of two nodes, the second has them all: more than are staged at a time.
    builder.add_hop(0, ids({0, count}), ids(random_numbers(count, kMany, 71)), {});
    builder.next_hop();
    const SampledSubgraph written = builder.finish();
    made.push_back(builder.finish(/*leaves_edges=*/true));
    CHECK_EQUAL(made.back().edge_index[0].defined(), count < kMany);
    CHECK(values<int64_t>(written.cols[0]) == std::vector<int64_t>(count, 1));
    expected_rows.push_back(values<int64_t>(written.rows[0]));
  }
  for (size_t i = 0; i < made.size(); ++i)  // the builder has made others meanwhile
    CHECK(values<int64_t>(with_edges(made[i]).rows[0]) == expected_rows[i]);
}

// Three rows, the second of 2^32 + 10 edges: int32 ids in memory that nobody wrote, all 0. An edge's id is its
// position.
Csr graph_with_a_huge_row() {
  constexpr int64_t kHuge = (int64_t{1} << 32) + 10;
  Csr csr;
  csr.indptr = ids({0, 5, 5 + kHuge, 5 + kHuge + 7});
  const size_t bytes = (kHuge + 12) * sizeof(int32_t);
  void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED);
  csr.indices.owner = std::shared_ptr<void>(memory, [bytes](void* mapped) { munmap(mapped, bytes); });
  csr.indices.data = memory;
  csr.indices.dtype = kInt32;
  csr.indices.shape = {kHuge + 12};
  csr.num_cols = 3;
  return make_csr(std::move(csr));
}

TEST("batches: a row of more than 2^32 edges is drawn from as a whole, and as on a GPU") {
  ThreadPool pool(2);
  const Csr csr = graph_with_a_huge_row();
  const Tensor seeds = ids({0, 1, 2});
  for (const bool replace : {false, true}) {
    int64_t largest = 0;
    for (uint64_t key = 0; key < 20; ++key) {
      const HopDraw draw{8, {Method::kUniform, replace, TimeRule::kIgnore}, key, true};
      const OneHop expected = sample_neighbors(csr, {seeds, {}, {}, {}}, draw, pool);
      BatchBuilder builder({3}, {{0, 0}});
      builder.begin(3, -1, true, false);
      builder.add_seeds(0, seeds, {}, false);
      builder.sample_hop(0, csr, draw, pool);
      builder.next_hop();
      CHECK(same(builder.finish().edge_ids[0], expected.edge_ids));
      const NodePicker picker(csr, 8, draw.how);
      Candidates from;
      CHECK(picker.candidates(1, 0, &from));
      const PickStream stream = stream_of(key, 1, nullptr, 1);
      int64_t positions[8];
      if (!replace) picker.pick_together(stream, from, positions, nullptr, /*may_leave=*/false);
      const int64_t* found = expected.edge_ids.as<int64_t>() + expected.counts.as<int64_t>()[0];
      for (int64_t pick = 0; pick < 8; ++pick) {
        CHECK_EQUAL(from.start + (replace ? picker.pick_one(stream, from, pick) : positions[pick]), found[pick]);
        largest = std::max(largest, found[pick]);
      }
    }
    CHECK(largest > int64_t{1} << 31);  // 10 of 2^32 edges only are missed where it is narrowed
  }
}

}  // namespace
}  // namespace gld::test

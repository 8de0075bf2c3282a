// The kernels of a batch, run on the host: the batch is that of the CPU's builder, bit by bit.
#include <cstring>

#include "arrays.h"
#include "batch_memory.h"
#include "check.h"
#include "host_executor.h"
#include "sampling/cuda/batch_chain.h"
#include "spread.h"
#include "typed_graph.h"

namespace gld::test {
namespace {

struct SeedList {
  int node_type;
  Tensor ids;
  bool unique = false;
};

struct Request {
  std::vector<SeedList> seeds;
  std::vector<std::vector<int64_t>> fanouts;
  std::vector<DrawMethod> how;
  bool disjoint = false;
  Tensor times{};
};

struct Batch {
  SampledSubgraph subgraph;
  std::vector<Tensor> local_ids;  // per list of seeds
};

std::vector<EdgeTypeSpec> specs() { return {{0, 1}, {0, 0}}; }
std::vector<int64_t> counter() { return {5, 2, 9}; }

// The part of a request's times that belongs to the seeds from `first` on.
Tensor times_of(const Request& request, int64_t first, int64_t count) {
  if (!request.times.defined()) return {};
  const int64_t* times = request.times.as<int64_t>() + first;
  return ids({times, times + count});
}

// The graph's edge types `copies` times over.
Batch from_builder(const Typed& graph, const Request& request, ThreadPool& pool, int copies = 1) {
  std::vector<EdgeTypeSpec> types;
  for (int copy = 0; copy < copies; ++copy)
    for (const EdgeTypeSpec& spec : specs()) types.push_back(spec);
  BatchBuilder builder({kUsers, kItems}, types);
  int64_t num_seeds = 0, first = 0;
  for (const SeedList& list : request.seeds) num_seeds += list.ids.numel();
  builder.begin(num_seeds, -1, true, request.disjoint);
  Batch out;
  for (const SeedList& list : request.seeds) {
    const Tensor times = times_of(request, first, list.ids.numel());
    out.local_ids.push_back(builder.add_seeds(list.node_type, list.ids, times, list.unique));
    first += list.ids.numel();
  }
  for (size_t hop = 0; hop < request.fanouts.size(); ++hop) {
    for (int type = 0; type < 2 * copies; ++type) {
      if (request.fanouts[hop][type] == 0) continue;
      const uint64_t key = draw_key(counter()[0], counter()[1], counter()[2], hop, type);
      builder.sample_hop(type, type % 2 == 0 ? graph.likes : graph.knows,
                         {request.fanouts[hop][type], request.how[type], key, true}, pool);
    }
    builder.next_hop();
  }
  out.subgraph = builder.finish();
  return out;
}

int64_t max_degree(const Csr& csr) {
  int64_t largest = 0;
  const int64_t* indptr = csr.indptr.as<int64_t>();
  for (int64_t row = 0; row < csr.num_rows(); ++row) largest = std::max(largest, indptr[row + 1] - indptr[row]);
  return largest;
}

BatchShape shape_of(const Typed& graph, const Request& request) {
  BatchShape shape;
  shape.num_nodes = {kUsers, kItems};
  for (int type = 0; type < 2; ++type) {
    const Csr& csr = type == 0 ? graph.likes : graph.knows;
    shape.edge_types.push_back({specs()[type], csr.num_edges(), max_degree(csr), request.how[type].replace});
  }
  for (const SeedList& list : request.seeds) shape.seeds.push_back({list.node_type, list.ids.numel(), list.unique});
  shape.fanouts = request.fanouts;
  shape.with_edge_ids = true;
  shape.disjoint = request.disjoint;
  return shape;
}

BatchInput input_of(const Typed& graph, const Request& request) {
  std::vector<Tensor> seeds;
  for (const SeedList& list : request.seeds) seeds.push_back(list.ids);
  return {{graph.likes, graph.knows}, request.how, seeds, request.times, ids(counter()), {}, {}};
}

class DeviceBatch {
 public:
  DeviceBatch(const Typed& graph, const Request& request, ThreadPool& pool, uint64_t order)
      : DeviceBatch(shape_of(graph, request), input_of(graph, request), pool, order) {}

  DeviceBatch(BatchShape shape, const BatchInput& input, ThreadPool& pool, uint64_t order)
      : shape_(std::move(shape)),
        layout_(lay_out_batch(shape_)),
        memory_(layout_.num_bytes),
        scratch_(layout_.num_scratch_bytes) {
    HostExecutor executor(pool, order);
    BatchChain<HostExecutor>(shape_, layout_, input, {memory_.begin(), scratch_.begin()}, executor).run();
    num_launches_ = executor.num_launches();
  }

  int num_launches() const { return num_launches_; }

  uint64_t status() const { return *at<uint64_t>(layout_.status); }
  const BatchLayout& layout() const { return layout_; }

  Batch read() const {
    Batch out;
    for (const BatchLayout::Nodes& nodes : layout_.nodes) {
      const int64_t count = counter_value(nodes.counters.back());
      CHECK(count <= nodes.capacity);
      out.subgraph.nodes.push_back(array(nodes.ids, count));
      out.subgraph.trees.push_back(shape_.disjoint ? array(nodes.trees, count) : Tensor{});
      out.subgraph.num_sampled_nodes.push_back(differences(nodes.counters, true));
    }
    for (const BatchLayout::Edges& edges : layout_.edges) {
      const int64_t count = counter_value(edges.counters.back());
      CHECK(count <= edges.capacity);
      out.subgraph.rows.push_back(array(edges.rows, count));
      const int64_t num_rows = shape_.padding ? edges.capacity : count;
      out.subgraph.cols.push_back(array(edges.rows + num_rows * sizeof(int64_t), count));
      out.subgraph.edge_ids.push_back(array(edges.edge_ids, count));
      out.subgraph.num_sampled_edges.push_back(differences(edges.counters, false));
    }
    for (const BatchLayout::SeedStep& step : layout_.seed_steps)
      out.local_ids.push_back(array(step.local_ids, counter_value(step.num_seeds)));
    return out;
  }

  template <typename T>
  const T* at(size_t offset) const {
    return reinterpret_cast<const T*>(memory_.begin() + offset);
  }
  int64_t counter_value(int number) const { return at<int64_t>(layout_.counters)[number]; }

 private:
  Tensor array(size_t offset, int64_t count) const {
    const int64_t* first = at<int64_t>(offset);
    return ids({first, first + count});
  }
  std::vector<int64_t> differences(const std::vector<int>& counters, bool with_first) const {
    std::vector<int64_t> out;
    if (with_first) out.push_back(counter_value(counters[0]));
    for (size_t i = 1; i < counters.size(); ++i)
      out.push_back(counter_value(counters[i]) - counter_value(counters[i - 1]));
    return out;
  }

  BatchShape shape_;
  BatchLayout layout_;
  Memory memory_, scratch_;
  int num_launches_ = 0;
};

void check_equal_batches(const Batch& found, const Batch& expected) {
  CHECK(equal(found.local_ids, expected.local_ids));
  CHECK(found.subgraph.num_sampled_nodes == expected.subgraph.num_sampled_nodes);
  CHECK(found.subgraph.num_sampled_edges == expected.subgraph.num_sampled_edges);
  CHECK(equal(found.subgraph, expected.subgraph));
}

void check_request(const Typed& graph, const Request& request) {
  ThreadPool pool(3);
  const Batch expected = from_builder(graph, request, pool);
  for (uint64_t order : {11, 12}) {
    const DeviceBatch batch(graph, request, pool, order);
    CHECK_EQUAL(batch.status(), OrderedTable::kEmpty);
    check_equal_batches(batch.read(), expected);
  }
}

std::vector<std::vector<int64_t>> three_hops(int64_t fanout) { return {3, {fanout, fanout}}; }

// Three hops from a hundred users, among them some twice.
void check_method(DrawMethod how, bool disjoint) {
  ThreadPool one(1);
  const Typed graph = typed_graph(how, one);
  Request request{{{0, ids(random_numbers(100, kUsers, 67))}}, {}, {how, how}, disjoint};
  if (how.times != TimeRule::kIgnore) request.times = ids(random_numbers(100, kTimes, 68));
  for (int64_t fanout : {3, 120, -1}) {
    if (fanout == -1 && disjoint && how.times == TimeRule::kIgnore) continue;  // large, and the same as the others
    request.fanouts = three_hops(fanout);
    check_request(graph, request);
  }
}

TEST("device batches: those of the builder, for every method") {
  for (bool disjoint : {false, true}) {
    for (const DrawMethod& how : every_method(TimeRule::kIgnore)) check_method(how, disjoint);
  }
}

TEST("device batches: the same with times") {
  for (const DrawMethod& how : every_method(TimeRule::kBefore)) check_method(how, true);
  check_method({Method::kUniform, false, TimeRule::kLatest}, true);
}

TEST("device batches: seeds of several lists, kept or collapsed, of one type or of two") {
  ThreadPool pool(1);
  const Typed graph = typed_graph({}, pool);
  const Tensor few = ids({7, 3, 7, 0, 3, 1499}), narrow = ids32({3, 9, 9, 3});
  for (bool unique : {false, true})
    for (bool disjoint : {false, true}) {
      const std::vector<SeedList> lists = {{0, few, unique}, {1, ids({2, 2, 399}), unique}, {0, narrow, unique}};
      check_request(graph, {lists, {{4, 2}, {2, 3}}, {{}, {}}, disjoint});
    }
}

TEST("device batches: hops and types that are left out, no seeds, no hops") {
  ThreadPool pool(1);
  const Typed graph = typed_graph({}, pool);
  const Tensor seeds = ids(random_numbers(40, kUsers, 70));
  check_request(graph, {{{0, seeds}}, {{0, 3}, {5, 0}, {0, 0}, {2, 2}}, {{}, {}}});
  check_request(graph, {{{0, seeds}}, {}, {{}, {}}});
  check_request(graph, {{{0, ids({})}}, three_hops(3), {{}, {}}});
  check_request(graph, {{{1, ids({4, 5})}}, three_hops(3), {{}, {}}});  // nothing is sampled for items
  check_request(graph, {{}, three_hops(3), {{}, {}}});
}

TEST("device batches: edge types differ in their draws; ids may be narrow or wide") {
  ThreadPool pool(1);
  Typed graph = typed_graph({method_of<methods::Weighted>, false, TimeRule::kIgnore}, pool);
  const std::vector<DrawMethod> how = {{method_of<methods::Weighted>, true, TimeRule::kIgnore},
                                       {method_of<methods::Labor>, false, TimeRule::kIgnore}};
  const Request request{{{0, ids(random_numbers(60, kUsers, 71))}}, three_hops(4), how};
  check_request(graph, request);
  CHECK(graph.knows.indices.dtype == kInt32);
  std::vector<int64_t> wide;
  for (int32_t neighbor : values<int32_t>(graph.knows.indices)) wide.push_back(neighbor);
  graph.knows.indices = ids(wide);
  graph.likes.edge_ids = {};  // an edge's id is its position
  check_request(graph, request);
}

TEST("device batches: frontiers and edges of many tiles") {
  ThreadPool pool(3);
  const Typed graph = typed_graph({}, pool);
  check_request(graph, {{{0, ids(random_numbers(3 * kScanTile + 17, kUsers, 72))}}, {{6, 6}, {1, 1}}, {{}, {}}});
}

// Pieces end within rows: 5 to 24 pages of numbers of 4 or 8 bytes hold rows of any length, one of 3,000 edges.
TEST("device batches: graphs in pieces, for every method") {
  ThreadPool pool(3);
  for (TimeRule times : {TimeRule::kIgnore, TimeRule::kBefore})
    for (const DrawMethod& how : every_method(times)) {
      const Typed graph = typed_graph(how, pool);
      Request request{{{0, ids(random_numbers(100, kUsers, 67))}}, three_hops(3), {how, how}, true};
      if (times != TimeRule::kIgnore) request.times = ids(random_numbers(100, kTimes, 68));
      const Batch expected = from_builder(graph, request, pool);
      for (int num_pieces : {2, 5}) {
        const Typed pieces{spread(graph.likes, num_pieces), spread(graph.knows, num_pieces)};
        check_equal_batches(DeviceBatch(pieces, request, pool, 31).read(), expected);
      }
    }
}

// Three users whose rows a thread does not read alone, by all methods or some, two of them just longer than that, and
// the others' short ones.
// `weight` gives each edge's.
template <typename Weight>
Typed graph_with_hubs(ThreadPool& pool, Weight weight) {
  constexpr int64_t kHub = 3 * kLongRow + 5, kEdges = 7 * kLongRow;
  std::vector<int64_t> users = random_numbers(kEdges, kUsers, 81), others = random_numbers(kEdges, kUsers, 82);
  for (int64_t e = 0; e < kHub; ++e) users[e] = 7;
  for (int64_t e = kHub; e < kHub + kLongRow + 1; ++e) users[e] = 8;
  for (int64_t e = kHub + kLongRow + 1; e < kHub + kLongRow + kLeastLongRow + 2; ++e) users[e] = 9;
  std::vector<float> weights;
  for (int64_t e = 0; e < kEdges; ++e) weights.push_back(weight(e));
  EdgeData data;
  data.weights = tensor(weights, {Kind::kFloat, 32});
  data.times = ids(random_numbers(kEdges, kTimes, 83));
  return {build_csr(ids({}), ids({}), {{}, tensor(std::vector<float>(), {Kind::kFloat, 32}), ids({})}, kUsers, kItems,
                    pool),
          build_csr(ids(users), ids(others), data, kUsers, kUsers, pool)};
}

// All weights but few are 0 or nearly so, beside those few: attempts find these again and again.
float skewed(int64_t edge) {
  return edge % 400 == 3 ? 1e30f : edge % 5 == 0 ? 0 : 1e-3f * static_cast<float>(edge % 7 + 1);
}

TEST("device batches: long rows, read by groups: every method, ties, weights of which few are nearly all") {
  ThreadPool pool(3);
  const auto equal_weights = [](int64_t) { return 2.0f; };
  const auto few_weights = [](int64_t edge) { return static_cast<float>(edge % 3); };
  for (TimeRule times : {TimeRule::kIgnore, TimeRule::kBefore})
    for (const Typed& made :
         {graph_with_hubs(pool, equal_weights), graph_with_hubs(pool, few_weights), graph_with_hubs(pool, skewed)}) {
      const Typed graph{with_sums(made.likes, pool), with_sums(made.knows, pool)};
      for (DrawMethod how : every_method(times))
        for (int64_t fanout : {1, 20, 300}) {
          Request request{{{0, ids({8, 9, 7, 7, 1499})}}, {{0, fanout}, {0, 2}}, {how, how}, true};
          if (times != TimeRule::kIgnore) request.times = ids({kTimes, 20, kTimes / 2, kTimes, 500});
          check_request(graph, request);
        }
    }
}

TEST("device batches: where the graph has long rows a launch a hop reads them, for methods that do") {
  ThreadPool pool(3);
  const Typed made = graph_with_hubs(pool, skewed);
  const Typed graph{with_sums(made.likes, pool), with_sums(made.knows, pool)};
  const auto num_launches = [&](DrawMethod how) {
    const Request request{{{0, ids({7, 8})}}, three_hops(4), {how, how}};
    return DeviceBatch(graph, request, pool, 3).num_launches();
  };
  const int without = num_launches({});
  for (const DrawMethod& how : every_method(TimeRule::kIgnore)) {
    if (how.replace) continue;
    CHECK_EQUAL(num_launches(how), without + (how.method == Method::kUniform ? 0 : 3));
  }
}

// Launches a batch: three fills; of each list of seeds its number, its entry in the table, the scan that adds it; of
// each hop counts, picks, entries, the scan that adds what is new, local ids, for eight edge types at once; then
// columns. The graph has rows that are long, and uniform draws read none.
TEST("device batches: twelve edge types, in two rounds a hop; launches do not grow with types") {
  ThreadPool pool(3);
  const Typed graph = typed_graph({}, pool);
  const auto check = [&](int copies, int fanout, DrawMethod how, int num_launches) {
    Request request{{{0, ids(random_numbers(40, kUsers, 75))}, {1, ids({3, 5})}}, {}, {how, how}};
    BatchShape shape = shape_of(graph, request);
    BatchInput input = input_of(graph, request);
    for (int copy = 1; copy < copies; ++copy)
      for (int type = 0; type < 2; ++type) {
        shape.edge_types.push_back(shape.edge_types[type]);
        input.graphs.push_back(input.graphs[type]);
        input.how.push_back(how);
        request.how.push_back(how);
      }
    shape.fanouts = request.fanouts = {3, std::vector<int64_t>(2 * copies, fanout)};
    const Batch expected = from_builder(graph, request, pool, copies);
    for (uint64_t order : {41, 42, 43}) {
      const DeviceBatch batch(shape, input, pool, order);
      CHECK_EQUAL(batch.status(), OrderedTable::kEmpty);
      check_equal_batches(batch.read(), expected);
      CHECK_EQUAL(batch.num_launches(), num_launches);
    }
  };
  constexpr int kSeeds = 3 + 3;
  check(1, 4, {}, kSeeds + 3 * 5 + 1);
  check(1, 4, {Method::kUniform, true, TimeRule::kIgnore}, kSeeds + 3 * 4 + 1);
  check(4, 4, {}, kSeeds + 3 * 5 + 1);
  check(6, 3, {}, kSeeds + 3 * 2 * 5 + 2);
}

TEST("device batches: the first seed outside the graph is told, and nothing is sampled") {
  ThreadPool pool(2);
  const Typed graph = typed_graph({}, pool);
  for (int64_t bad : {kUsers, int64_t{-1}}) {
    const Request request{{{0, ids({1, 2})}, {0, ids({5, bad, bad})}}, three_hops(3), {{}, {}}};
    const DeviceBatch batch(graph, request, pool, 1);
    CHECK_EQUAL(batch.status(), 3u);  // its position among all seeds
    CHECK_EQUAL(batch.read().subgraph.rows[1].numel(), 0);
  }
}

constexpr int64_t kBatchSize = 32, kLastSeeds = 20;

// 32 seeds in a batch; counter() names the last one of the schedule, which has 20.
struct PaddedRequest {
  PaddedRequest(const Typed& graph, const Request& request, Padding padding)
      : last(request), shape(shape_of(graph, request)), input(input_of(graph, request)) {
    const int64_t num_inputs = counter()[2] * kBatchSize + kLastSeeds;
    const auto seeds = random_numbers(num_inputs, kUsers, 73), times = random_numbers(num_inputs, kTimes, 74);
    last.seeds = {{0, ids({seeds.end() - kLastSeeds, seeds.end()})}};
    if (request.times.defined()) last.times = ids({times.end() - kLastSeeds, times.end()});
    shape.seeds = {{0, kBatchSize, false}};
    shape.padding = std::move(padding);
    input.seeds.clear();
    input.times = {};
    input.schedule = {ids(seeds), request.times.defined() ? ids(times) : Tensor{}, false};
    input.failure = ids({-1, -1, -1});
  }

  Request last;  // the same batch, without padding
  BatchShape shape;
  BatchInput input;
};

void check_padding(const DeviceBatch& batch, bool disjoint) {
  const BatchLayout& layout = batch.layout();
  const auto num_nodes = [&](int type) { return batch.counter_value(layout.nodes[type].counters.back()); };
  for (int type = 0; type < 2; ++type) {
    const BatchLayout::Nodes& nodes = layout.nodes[type];
    CHECK(nodes.size == nodes.capacity + 1);
    for (int64_t i = 0; i < nodes.size; ++i) {
      const bool is_real = i < num_nodes(type);
      CHECK(batch.at<bool>(nodes.mask)[i] == is_real);
      CHECK((batch.at<int64_t>(nodes.ids)[i] == -1) == !is_real);
      if (disjoint) CHECK((batch.at<int64_t>(nodes.trees)[i] == kBatchSize) == !is_real);
    }
    const BatchLayout::Edges& edges = layout.edges[type];
    const int64_t num_edges = batch.counter_value(edges.counters.back());
    for (int64_t i = 0; i < edges.capacity; ++i) {
      CHECK(batch.at<bool>(edges.mask)[i] == (i < num_edges));
      if (i < num_edges) continue;
      CHECK_EQUAL(batch.at<int64_t>(edges.edge_ids)[i], -1);
      const auto check_end = [&](int64_t local, int node_type) {
        CHECK(local >= num_nodes(node_type) && local < layout.nodes[node_type].size);
      };
      check_end(batch.at<int64_t>(edges.rows)[i], specs()[type].neighbor_type);
      check_end(batch.at<int64_t>(edges.cols)[i], specs()[type].seed_type);
    }
  }
  const int64_t num_seeds = batch.counter_value(layout.seed_steps[0].num_seeds);
  for (int64_t i = 0; i < kBatchSize; ++i) {
    CHECK(batch.at<bool>(layout.seeds.mask)[i] == (i < num_seeds));
    CHECK_EQUAL(batch.at<int64_t>(layout.seeds.positions)[i], i < num_seeds ? counter()[2] * kBatchSize + i : -1);
  }
}

TEST("padded batches: those of the builder, and padding behind them") {
  ThreadPool pool(3);
  for (bool disjoint : {false, true}) {
    const DrawMethod how{Method::kUniform, false, disjoint ? TimeRule::kBefore : TimeRule::kIgnore};
    const Typed graph = typed_graph(how, pool);
    const Request request{{}, three_hops(4), {how, how}, disjoint, disjoint ? ids({0}) : Tensor{}};
    for (const Padding& padding : {Padding{{-1, -1}, {-1, -1}}, Padding{{3000, 2000}, {-1, 5000}}}) {
      const PaddedRequest padded(graph, request, padding);
      const Batch expected = from_builder(graph, padded.last, pool);
      for (uint64_t order : {21, 22}) {
        const DeviceBatch batch(padded.shape, padded.input, pool, order);
        CHECK_EQUAL(padded.input.failure.as<int64_t>()[0], -1);
        check_equal_batches(batch.read(), expected);
        check_padding(batch, disjoint);
      }
    }
  }
}

TEST("padded batches: what does not fit is told once, and the batch is padding alone") {
  ThreadPool pool(3);
  const Typed graph = typed_graph({}, pool);
  const Request request{{}, three_hops(-1), {{}, {}}};
  const auto check_overflow = [&](Padding padding, size_t type) {
    for (uint64_t order : {31, 32}) {
      const PaddedRequest padded(graph, request, padding);
      const DeviceBatch batch(padded.shape, padded.input, pool, order);
      CHECK_EQUAL(batch.status(), overflow_of(type));
      CHECK(values<int64_t>(padded.input.failure) ==
            (std::vector<int64_t>{static_cast<int64_t>(overflow_of(type)), counter()[1], counter()[2]}));
      check_padding(batch, false);
      CHECK_EQUAL(batch.counter_value(batch.layout().nodes[0].counters.back()), 0);
    }
  };
  check_overflow({{33, -1}, {-1, -1}}, 0);
  check_overflow({{-1, 1}, {-1, -1}}, 1);
  check_overflow({{-1, 60}, {-1, -1}}, 1);
  check_overflow({{-1, -1}, {7, -1}}, 2);
  check_overflow({{-1, -1}, {-1, 1}}, 3);
  CHECK_THROWS(InvalidArgument, check_overflow({{32, -1}, {-1, -1}}, 0));
  CHECK_THROWS(InvalidArgument, check_overflow({{-1, -1}, {-1, 0}}, 0));
}

TEST("device batches: bounds are those of the graph and of the fan-outs") {
  ThreadPool pool(1);
  const Typed graph = typed_graph({}, pool);
  const auto layout = [&](int64_t fanout, bool unique, bool replace) {
    const DrawMethod how{Method::kUniform, replace, TimeRule::kIgnore};
    const Request request{{{0, ids({1, 2, 3}), unique}}, {{0, fanout}}, {how, how}};
    return lay_out_batch(shape_of(graph, request));
  };
  CHECK_EQUAL(layout(4, false, false).edges[1].capacity, 12);
  CHECK_EQUAL(layout(4, false, false).nodes[0].capacity, 15);
  CHECK_EQUAL(layout(4, false, false).nodes[1].capacity, 0);
  CHECK_EQUAL(layout(-1, false, false).edges[1].capacity, 3 * max_degree(graph.knows));
  CHECK_EQUAL(layout(-1, true, false).edges[1].capacity, std::min(3 * max_degree(graph.knows), kKnows));
  CHECK_EQUAL(layout(kUsers, false, true).edges[1].capacity, 3 * kUsers);
  CHECK_EQUAL(layout(kUsers, false, true).nodes[0].capacity, 3 + kUsers);
  CHECK_THROWS(InvalidArgument, layout(kMaxBatchEdges, false, true));
  CHECK_THROWS(InvalidArgument, layout(-2, false, false));
}

}  // namespace
}  // namespace gld::test

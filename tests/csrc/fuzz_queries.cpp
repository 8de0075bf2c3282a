// The decoder of queries and a small partition's answers, under arbitrary bytes. Built with clang and -fsanitize=fuzzer
// this file is a libFuzzer target (gld_fuzz_queries in CMakeLists.txt); the core's tests call it with mutated queries.
#include "fuzz_queries.h"

#include <cstring>
#include <memory>

#include "arrays.h"
#include "check.h"
#include "rpc/frame.h"
#include "sampling/methods.h"

namespace gld::test {
namespace {

using namespace exchange;

constexpr int64_t kNodes = 40, kEdges = 160;
constexpr int64_t kMaxAnswer = 1 << 16;

std::shared_ptr<const PartitionBook> halves() { return PartitionBook::range(ids({0, kNodes, 2 * kNodes})); }

// Rows of the first half of the nodes, whose neighbors are any; edge ids are every second number.
Csr half_graph(bool with_weights_and_times, ThreadPool& pool) {
  std::vector<int64_t> edge_ids(kEdges);
  std::vector<float> weights(kEdges);
  for (int64_t e = 0; e < kEdges; ++e) {
    edge_ids[e] = 2 * e;
    weights[e] = static_cast<float>(e % 3);
  }
  EdgeData data;
  data.ids = ids(edge_ids);
  if (with_weights_and_times) {
    data.weights = tensor(weights, kFloat32);
    data.times = ids(random_numbers(kEdges, 10, 3));
  }
  std::vector<int64_t> row = random_numbers(kEdges, kNodes, 1);
  for (int64_t e = 0; e < kEdges / 4; ++e) row[e] = 0;  // a hub
  return build_csr(ids(row), ids(random_numbers(kEdges, 2 * kNodes, 2)), data, kNodes, 2 * kNodes, pool);
}

HeldRows zeros(int64_t count, int64_t columns) {
  const Tensor rows = empty({count, columns}, kFloat32);
  std::memset(rows.data, 0, rows.nbytes());
  HeldRows held;
  held.store = std::make_shared<RowStore>(make_row_store({rows}));
  return held;
}

HeldEdges held_edges(bool with_weights_and_times, ThreadPool& pool) {
  HeldEdges edges;
  edges.graph = std::make_shared<Csr>(half_graph(with_weights_and_times, pool));
  edges.book = halves();
  if (with_weights_and_times)
    edges.weighted = std::make_shared<Lazy<Csr>>([graph = edges.graph] {
      ThreadPool one(1);
      return std::make_shared<Csr>(with_sums(*graph, one));
    });
  return edges;
}

std::vector<int64_t> numbers(int64_t first, int64_t count, int64_t step = 1) {
  std::vector<int64_t> out(count);
  for (int64_t i = 0; i < count; ++i) out[i] = first + i * step;
  return out;
}

HeldStore by_node(const char* name, bool with_copies) {
  HeldStore store;
  store.name = name;
  store.book = halves();
  store.own = zeros(kNodes, 3);
  if (with_copies)
    store.copies = HeldCopies{zeros(kNodes + 5, 3), ids(numbers(kNodes + 3, 5)), ids(numbers(kNodes, 5))};
  return store;
}

HeldStore by_edge() {
  HeldStore store;
  store.name = "edges";
  store.edge_ids = std::make_shared<Lazy<SortedIds>>(
      [] { return std::make_shared<SortedIds>(ids(numbers(0, kEdges, 2)), nullptr); });
  store.own = zeros(kEdges, 1);
  return store;
}

// The bytes of a value in memory of their own, so that a sanitizer sees what reads beyond them.
struct Exactly {
  std::unique_ptr<char[]> head, payload;
  rpc::IncomingValue value;

  Exactly(const char* bytes, size_t head_bytes, size_t payload_bytes)
      : head(new char[head_bytes]), payload(new char[payload_bytes]) {
    std::memcpy(head.get(), bytes, head_bytes);
    std::memcpy(payload.get(), bytes + head_bytes, payload_bytes);
    value = {{head.get(), head_bytes}, payload.get(), payload_bytes, nullptr};
  }
};

template <typename Work>
bool done_or_refused(Work&& work) {
  try {
    work();
    return true;
  } catch (const InvalidArgument&) {
  } catch (const rpc::ProtocolError&) {
  }
  return false;
}

// What is read of a value is all of it: written again it is read as the same.
void check_query_again(const Query& query) {
  const rpc::OutgoingValue first = encode_query(query);
  const std::string bytes = as_bytes(first);
  const Exactly copy(bytes.data() + 2, first.head.size(), bytes.size() - 2 - first.head.size());
  CHECK(as_bytes(encode_query(decode_query(copy.value))) == bytes);
}

}  // namespace

std::shared_ptr<PartitionServer> small_server() {
  auto pool = std::make_shared<ThreadPool>(1);
  HeldPartition held;
  held.edges = {held_edges(true, *pool), held_edges(false, *pool)};
  held.stores = {by_node("rows", false), by_node("cached", true), by_edge()};
  HeldStore elsewhere = by_node("elsewhere", false);
  elsewhere.own = {};
  held.stores.push_back(elsewhere);
  held.pool = pool;
  held.max_answer_bytes = kMaxAnswer;
  return std::make_shared<PartitionServer>(std::move(held));
}

std::vector<std::string> valid_queries() {
  HopQuery hop;
  hop.with_edge_ids = true;
  const Tensor asked = ids32({0, 7, 39, 0});
  for (uint8_t method = 0; method < Methods::kTraits.size(); ++method)
    for (const TimeRule times : {TimeRule::kIgnore, TimeRule::kBefore})
      hop.parts.push_back(
          {0, {3, {Method{method}, false, times}, method, true}, asked, ids32({0, 0, 1, 2}), ids({9, 1, 5, 3})});
  hop.parts.push_back({1, {-1, {}, 5, true}, ids({}), {}, {}});
  HopQuery plain;
  plain.parts.push_back({1, {2, {Method{0}, true, TimeRule::kIgnore}, ~uint64_t{0}, false}, ids({3, 4}), {}, {}});
  const RowsQuery rows{{{"rows", asked}, {"cached", ids({1, kNodes + 4})}, {"edges", ids32({0, 2, 318})}}};
  const OwnedQuery owned{{{"edges", ids32({0, 1, 400})}, {"rows", ids({1, kNodes})}}};
  const HasEdgesQuery has{0, asked, ids({79, 0, 1, 2})};
  const InducedQuery induced{true, {{0, 0, asked}, {1, 1, ids({1})}}, {ids32({1, 2, 3, 50}), ids(numbers(0, 80))}};
  std::vector<std::string> out;
  const DegreesQuery degrees{1, asked};
  for (const Query& query :
       {Query(hop), Query(plain), Query(rows), Query(owned), Query(has), Query(induced), Query(degrees)})
    out.push_back(as_bytes(encode_query(query)));
  out.push_back(as_bytes(encode_answer({asked, {}, zeros(3, 2).store->parts[0]})));
  return out;
}

std::string as_bytes(rpc::OutgoingValue unmade) {
  const rpc::OutgoingValue value = rpc::made(std::move(unmade));
  const auto length = static_cast<uint16_t>(value.head.size());
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += value.head;
  for (const rpc::Segment& segment : value.segments) {
    bytes.append(static_cast<const char*>(segment.data), segment.bytes);
    bytes.append((rpc::kSegmentAlignment - segment.bytes % rpc::kSegmentAlignment) % rpc::kSegmentAlignment, '\0');
  }
  CHECK_EQUAL(bytes.size(), sizeof length + value.head.size() + value.payload_bytes());
  return bytes;
}

bool check_any_query(const uint8_t* data, size_t size) {
  static const std::shared_ptr<PartitionServer> server = small_server();
  uint16_t head_bytes = 0;
  if (size < sizeof head_bytes) return false;
  std::memcpy(&head_bytes, data, sizeof head_bytes);
  size -= sizeof head_bytes;
  const size_t in_head = std::min<size_t>(head_bytes, size);
  const Exactly came(reinterpret_cast<const char*>(data) + sizeof head_bytes, in_head, size - in_head);
  done_or_refused([&] { check_query_again(decode_query(came.value)); });
  for (size_t count = 0; count < 4; ++count) {
    done_or_refused([&] {
      for (const Tensor& tensor : decode_answer(came.value, count)) CHECK(!tensor.defined() || tensor.nbytes() <= size);
    });
  }
  return done_or_refused([&] {
    const rpc::OutgoingValue answer = server->answer(came.value);
    CHECK(answer.payload_bytes() <= static_cast<uint64_t>(kMaxAnswer) + 64 * 64 + 32 * size);
    as_bytes(answer);  // reads all of it
  });
}

}  // namespace gld::test

#ifdef GLD_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gld::test::check_any_query(data, size);
  return 0;
}
#endif

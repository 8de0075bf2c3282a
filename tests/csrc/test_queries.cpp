// Queries and answers: what is encoded is read back, and whatever bytes arrive are a whole query or refused.
#include <atomic>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "arrays.h"
#include "check.h"
#include "exchange/queries.h"
#include "fuzz_queries.h"
#include "received.h"
#include "rpc/frame.h"
#include "rpc/msgpack.h"
#include "sampling/methods.h"

namespace gld::test {
namespace {

using exchange::decode_answer;
using exchange::decode_query;
using exchange::DegreesQuery;
using exchange::encode_answer;
using exchange::encode_query;
using exchange::HasEdgesQuery;
using exchange::HopQuery;
using exchange::InducedQuery;
using exchange::OwnedQuery;
using exchange::Query;
using exchange::RowsQuery;
using rpc::IncomingValue;
using rpc::ProtocolError;

std::vector<int64_t> numbers(int64_t count) {
  std::vector<int64_t> out(count);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace

TEST("queries: a hop goes there and back in few bytes") {
  HopQuery query;
  query.with_edge_ids = true;
  query.parts.push_back({3,
                         {15, {Method{2}, false, TimeRule::kBefore}, ~uint64_t{5}, true},
                         ids32({1, 2, 70000}),
                         ids({0, 1, 2}),
                         ids({7, 8, 9})});
  query.parts.push_back({0, {-1, {}, 1, true}, ids({}), {}, {}});
  const Received got = received(encode_query(query));
  CHECK(got.head.size() < 100);
  const HopQuery back = std::get<HopQuery>(decode_query(got.value()));
  CHECK(back.with_edge_ids);
  CHECK_EQUAL(back.parts.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const HopQuery::Part &was = query.parts[i], &is = back.parts[i];
    CHECK_EQUAL(is.edge_type, was.edge_type);
    CHECK_EQUAL(is.draw.fanout, was.draw.fanout);
    CHECK_EQUAL(is.draw.key, was.draw.key);
    CHECK(is.draw.how.method == was.draw.how.method && is.draw.how.replace == was.draw.how.replace);
    CHECK(is.draw.how.times == was.draw.how.times && is.draw.with_edge_ids);
    CHECK(same(is.ids, was.ids) && same(is.trees, was.trees) && same(is.times, was.times));
  }
  CHECK_THROWS(ProtocolError, decode_answer(got.value(), 3));
}

TEST("queries: one part of a hop has a head below 50 bytes") {
  HopQuery query;
  query.parts.push_back({30, {15, {}, ~uint64_t{0}, false}, ids(numbers(70000)), ids(numbers(70000)), {}});
  CHECK(encode_query(query).head.size() < 50);
}

TEST("queries: rows, owners, edges and members go there and back") {
  const RowsQuery rows{{{"node_feature:0", ids32({3, 1})}, {"", ids({})}}};
  const Received got_rows = received(encode_query(rows));
  const auto rows_back = std::get<RowsQuery>(decode_query(got_rows.value()));
  CHECK_EQUAL(rows_back.parts.size(), 2u);
  for (size_t i = 0; i < 2; ++i)
    CHECK(rows_back.parts[i].store == rows.parts[i].store && same(rows_back.parts[i].ids, rows.parts[i].ids));

  const OwnedQuery owned{rows.parts};
  const Received got_owned = received(encode_query(owned));
  CHECK(same(std::get<OwnedQuery>(decode_query(got_owned.value())).parts[0].ids, rows.parts[0].ids));

  const HasEdgesQuery has{-7, ids({1, 2}), ids32({3, 4})};
  const Received got_has = received(encode_query(has));
  const auto has_back = std::get<HasEdgesQuery>(decode_query(got_has.value()));
  CHECK_EQUAL(has_back.edge_type, -7);  // whether there is such a type is for who looks it up
  CHECK(same(has_back.ids, has.ids) && same(has_back.neighbors, has.neighbors));

  const Received got_degrees = received(encode_query(DegreesQuery{4, ids32({2, 3})}));
  const auto degrees_back = std::get<DegreesQuery>(decode_query(got_degrees.value()));
  CHECK(degrees_back.edge_type == 4 && same(degrees_back.ids, ids32({2, 3})));
  const InducedQuery induced{true, {{2, 1, ids({5})}}, {ids32({1}), ids({})}};
  const Received got_induced = received(encode_query(induced));
  const auto induced_back = std::get<InducedQuery>(decode_query(got_induced.value()));
  CHECK(induced_back.with_edge_ids && induced_back.parts[0].edge_type == 2 && induced_back.parts[0].member_type == 1);
  CHECK(same(induced_back.parts[0].ids, induced.parts[0].ids));
  CHECK(same(induced_back.members[0], induced.members[0]) && same(induced_back.members[1], induced.members[1]));
}

TEST("queries: answers of every dtype and shape") {
  for (int kind = 0; kind < 40; ++kind) {
    for (const int bits : {1, 4, 8, 16, 32, 64, 128}) {
      const DType dtype{static_cast<Kind>(kind), static_cast<uint8_t>(bits)};
      const bool is_float8 = bits == 8 && kind >= 10 && kind <= 14;
      const bool is_number = kind <= 1 && bits >= 8 && bits <= 64;
      const bool is_float = kind == 2 && bits >= 16 && bits <= 64;
      const bool is_other = (kind == 4 && bits == 16) || (kind == 5 && bits >= 32) || (kind == 6 && bits == 8);
      Tensor rows = empty({3, 2}, kInt64);
      rows.dtype = dtype;
      if (!is_float8 && !is_number && !is_float && !is_other) {
        CHECK_THROWS(InvalidArgument, encode_answer({rows}));
        continue;
      }
      rows = empty({3, 2}, dtype);
      std::memset(rows.data, 7, rows.nbytes());
      const Received got = received(encode_answer({rows, {}, empty({0, 9}, dtype), rows}));
      const std::vector<Tensor> back = decode_answer(got.value(), 4);
      CHECK(same(back[0], rows) && !back[1].defined() && same(back[3], rows));
      CHECK(back[2].defined() && back[2].shape == std::vector<int64_t>({0, 9}) && back[2].dtype == dtype);
    }
  }
}

TEST("queries: tensors are views of the payload, which lives as long as they do") {
  const Tensor sent = ids({1, 2, 3});
  std::optional<Received> got = received(encode_answer({sent, sent}));
  const std::vector<Tensor> back = decode_answer(got->value(), 2);
  CHECK_EQUAL(back[1].as<char>() - back[0].as<char>(), 64);
  CHECK_EQUAL(back[0].data, got->payload.data);
  got.reset();
  CHECK(same(back[0], sent) && same(back[1], sent));
}

TEST("queries: a payload that begins anywhere") {
  const Received got = received(encode_answer({ids({1, 2, 3}), tensor<double>({2.5}, kFloat64)}));
  const auto size = static_cast<size_t>(got.payload.numel());
  std::vector<char> memory(size + 1);
  std::memcpy(memory.data() + 1, got.payload.data, size);
  const std::vector<Tensor> back = decode_answer({got.head, memory.data() + 1, size, nullptr}, 2);
  CHECK(same(back[0], ids({1, 2, 3})) && same(back[1], tensor<double>({2.5}, kFloat64)));
}

TEST("queries: shapes that overflow, and counts of what is not there") {
  using rpc::msgpack::Writer;
  const auto answer_of = [](const std::vector<uint64_t>& extents) {
    Writer out;
    out.list(1);
    out.list(1 + extents.size());
    out.natural(3);  // int64
    for (const uint64_t extent : extents) out.natural(extent);
    return out.written();
  };
  char memory[64] = {};
  const auto refused = [&](const std::string& head) {
    for (const uint64_t bytes : {0, 64}) CHECK_THROWS(ProtocolError, decode_answer({head, memory, bytes, nullptr}, 1));
  };
  const uint64_t huge = std::numeric_limits<int64_t>::max();
  refused(answer_of({huge}));
  refused(answer_of({huge + 1}));
  refused(answer_of({~uint64_t{0}}));
  refused(answer_of({0, huge, huge}));  // no elements: but what multiplies extents would overflow
  refused(answer_of({huge, huge, 0}));
  refused(answer_of({1ull << 32, 1ull << 32}));
  refused(answer_of({9}));
  refused(answer_of(std::vector<uint64_t>(65, 1)));
  CHECK_EQUAL(decode_answer({answer_of({8}), memory, 64, nullptr}, 1)[0].numel(), 8);
  CHECK_EQUAL(decode_answer({answer_of({0, 1ull << 40}), nullptr, 0, nullptr}, 1)[0].numel(), 0);
  refused(std::string("\xdd\x00\x00\x00\x01", 5));
  refused("\xdf\xff\xff\xff\xff");
  refused(std::string(61 << 10, '\xc0'));
}

TEST("queries: what does not fit together") {
  const Tensor three = ids({1, 2, 3}), two = ids({1, 2}), real = tensor<double>({1, 2, 3}, kFloat64);
  Tensor square = ids({1, 2, 3, 4});
  square.shape = {2, 2};
  const auto refused = [](const Query& query) {
    const Received got = received(encode_query(query));
    CHECK_THROWS(ProtocolError, decode_query(got.value()));
  };
  for (const Tensor& wrong : {real, square, Tensor()}) {
    refused(RowsQuery{{{"x", wrong}}});
    refused(HasEdgesQuery{0, wrong, three});
    refused(HasEdgesQuery{0, three, wrong});
    refused(InducedQuery{false, {{0, 0, three}}, {wrong}});
    HopQuery hop;
    hop.parts.push_back({0, {}, wrong, {}, {}});
    refused(hop);
  }
  refused(HasEdgesQuery{0, three, two});
  for (const Tensor& wrong : {two, real, square}) {
    HopQuery trees, times;
    trees.parts.push_back({0, {}, three, wrong, {}});
    times.parts.push_back({0, {}, three, {}, wrong});
    refused(trees);
    refused(times);
  }
  HopQuery narrow, method, rule;
  narrow.parts.push_back({0, {}, three, ids32({4, 5, 6}), ids32({1, 2, 3})});
  method.parts.push_back(
      {0, {1, {Method{static_cast<uint8_t>(Methods::kTraits.size())}, false, {}}, 0, false}, three, {}, {}});
  rule.parts.push_back({0, {1, {{}, false, static_cast<TimeRule>(3)}, 0, false}, three, {}, {}});
  const Received whole = received(encode_query(narrow));
  const HopQuery taken = std::get<HopQuery>(decode_query(whole.value()));
  CHECK(same(taken.parts[0].trees, ids32({4, 5, 6})) && same(taken.parts[0].times, ids32({1, 2, 3})));
  refused(method);
  refused(rule);
}

TEST("queries: too many parts are refused by who would send them") {
  CHECK_THROWS(InvalidArgument, encode_answer(std::vector<Tensor>(70000)));
}

TEST("queries: ids in the fewest bytes") {
  CHECK(same(exchange::fewest_bytes(ids({1, -2})), ids32({1, -2})));
  CHECK(same(exchange::fewest_bytes(ids32({4})), ids32({4})));
  const Tensor large = ids({1, int64_t{1} << 40});
  CHECK_EQUAL(exchange::fewest_bytes(large).data, large.data);
  CHECK_THROWS(InvalidArgument, exchange::fewest_bytes(tensor<double>({1}, kFloat64)));
}

TEST("queries: whatever is damaged is answered or refused") {
  int answered = 0, whole = 0;
  const auto check = [&](const std::string& bytes) {
    answered += check_any_query(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  };
  const std::vector<std::string> valid = valid_queries();
  for (const std::string& bytes : valid) check(bytes);
  whole = answered;
  CHECK_EQUAL(whole, static_cast<int>(valid.size()) - 1);  // the last is an answer
  for (const std::string& bytes : valid) {
    for (size_t length = 0; length < bytes.size(); ++length) check(bytes.substr(0, length));
    for (size_t at = 0; at < bytes.size(); ++at)
      for (const char flip : {'\x01', '\x80', '\xff'}) {
        std::string damaged = bytes;
        damaged[at] = static_cast<char>(damaged[at] ^ flip);
        check(damaged);
      }
  }
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = valid[random() % valid.size()];
    for (int left = 1 + round % 5; left > 0; --left) {
      const size_t at = 2 + random() % std::min<size_t>(bytes.size() - 2, round % 2 == 0 ? 60 : bytes.size());
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + random() % 4);
          bytes.resize(std::max<size_t>(bytes.size(), 3));
          break;
        default:
          bytes.insert(at, bytes.substr(2 + random() % (bytes.size() - 2), 1 + random() % 8));
      }
    }
    check(bytes);
  }
  CHECK(answered > 1000);
}

TEST("queries: a partition answers what it is asked") {
  const auto server = small_server();
  HopQuery query;
  query.parts.push_back({1, {-1, {}, 1, false}, ids32({0, 5}), {}, {}});
  const Received asked = received(encode_query(query));
  const Received got = received(server->answer(asked.value()));
  const std::vector<Tensor> answer = decode_answer(got.value(), 3);
  CHECK(answer[0].dtype == kUInt8 && answer[1].dtype == kInt32 && !answer[2].defined());
  CHECK_EQUAL(answer[0].as<uint8_t>()[0] + answer[0].as<uint8_t>()[1], answer[1].numel());
  const auto refusal = [&](const Query& wrong) -> std::string {
    const Received bytes = received(encode_query(wrong));
    try {
      server->answer(bytes.value());
    } catch (const UnknownId& error) {
      return message("id: ", error.what());
    } catch (const InvalidArgument& error) {
      return message("argument: ", error.what());
    } catch (const PartitionFormat& error) {
      return message("files: ", error.what());
    }
    return "none";
  };
  CHECK_EQUAL(refusal(RowsQuery{{{"nodes", ids({0})}}}),
              std::string("argument: stores: expected one of ['cached', 'edges', 'rows'], got 'nodes'"));
  CHECK_EQUAL(refusal(RowsQuery{{{"elsewhere", ids({0})}}}),
              std::string("files: elsewhere: partition 0 has no such rows, others have: a directory is incomplete"));
  CHECK_EQUAL(refusal(RowsQuery{{{"edges", ids({0, 3})}}}),
              std::string("id: ids[1]: edge 3 is not one of partition 0"));
  CHECK_EQUAL(refusal(RowsQuery{{{"cached", ids({0, 41})}}}),
              std::string("id: ids: id 41 has no row here, and no copy of one"));
  CHECK_EQUAL(refusal(InducedQuery{false, {{0, 1, ids({0})}}, {ids({0})}}),
              std::string("argument: member_types: expected less than 1, got 1"));
}

TEST("queries: threads that ask at once get the same answers") {
  const auto server = small_server();
  std::vector<Received> asked;
  for (const std::string& bytes : valid_queries()) {
    uint16_t head = 0;
    std::memcpy(&head, bytes.data(), sizeof head);
    asked.push_back({bytes.substr(2, head), tensor(std::vector<char>(bytes.begin() + 2 + head, bytes.end()), kUInt8)});
  }
  asked.pop_back();  // the answer
  std::vector<std::string> expected;
  for (const Received& query : asked) expected.push_back(as_bytes(small_server()->answer(query.value())));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round)
        for (size_t i = 0; i < asked.size(); ++i) wrong += as_bytes(server->answer(asked[i].value())) != expected[i];
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(wrong.load(), 0);
}

}  // namespace gld::test

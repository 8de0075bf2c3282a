// Lookups of rows over partitions, some of which are asked, and what is kept of their answers.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arrays.h"
#include "check.h"
#include "exchange/queries.h"
#include "exchange/row_lookup.h"
#include "received.h"
#include "rpc/frame.h"

namespace gld::test {
namespace {

using exchange::Asked;
using exchange::RecentRows;
using exchange::RowLookup;
using exchange::RowPlan;
using exchange::RowsExchange;
using exchange::RowsQuery;
using Book = std::shared_ptr<const PartitionBook>;
using Stores = std::vector<std::shared_ptr<RowStore>>;
using Wanted = std::vector<std::vector<RowLookup::Wanted>>;

constexpr int64_t kIds = 3000;
constexpr int kPartitions = 3;  // the first is at hand
constexpr size_t kStores = 2;

float value_of(int64_t id, size_t store, int64_t column) {
  return static_cast<float>(100 * id + 10 * static_cast<int64_t>(store) + column);
}

int64_t width_of(size_t store) { return store == 0 ? 3 : 1; }

Tensor rows_of(const Tensor& given, size_t store) {
  const int64_t width = width_of(store);
  Tensor rows = empty({given.numel(), width}, kFloat32);
  dispatch_index(given.dtype, "ids", [&](auto type) {
    for (int64_t i = 0; i < given.numel(); ++i)
      for (int64_t c = 0; c < width; ++c)
        rows.as<float>()[i * width + c] = value_of(given.as<decltype(type)>()[i], store, c);
  });
  return rows;
}

std::shared_ptr<RowStore> store_of(Tensor rows) {
  return std::make_shared<RowStore>(make_row_store({std::move(rows)}));
}

const std::vector<bool> kIsAsked{false, true, true};

Book make_book() { return PartitionBook::permuted(kIds, kPartitions, 5); }

std::shared_ptr<RowPlan> make_plan(std::shared_ptr<RecentRows> recent, bool repeats = false, Book book = make_book()) {
  auto plan = std::make_shared<RowPlan>();
  plan->groups.push_back({{"features", "labels"}, std::move(book), nullptr, {}, std::move(recent), 0});
  plan->is_asked = kIsAsked;
  plan->repeats = repeats;
  check_plan(*plan);
  return plan;
}

// By store, the rows of the partition at hand, then of others and copies, of which there are none.
std::vector<Stores> held_rows(const RowPlan& plan) {
  std::vector<Stores> held;
  for (size_t store = 0; store < kStores; ++store) {
    held.emplace_back(kPartitions + 1);
    held.back()[0] = store_of(rows_of(plan.groups[0].book->global_ids(0, nullptr), store));
  }
  return held;
}

rpc::OutgoingValue answer_to(const Asked& asked) {
  const Received query = received(asked.query);
  const auto wanted = std::get<RowsQuery>(exchange::decode_query(query.value()));
  std::vector<Tensor> rows;
  for (const RowsQuery::Part& part : wanted.parts) rows.push_back(rows_of(part.ids, part.store == "features" ? 0 : 1));
  return exchange::encode_answer(rows);
}

void take_all(RowsExchange& exchange) {
  const std::vector<Asked> asked = exchange.next();
  for (size_t i = 0; i < asked.size(); ++i) {
    const Received answer = received(answer_to(asked[i]));
    exchange.take(i, answer.value());
  }
  CHECK(exchange.next().empty());
}

void check_rows_of(const RowLookup& rows, const std::vector<Stores>& held, const Wanted& wanted) {
  for (size_t batch = 0; batch < wanted.size(); ++batch) {
    const Tensor& of_batch = wanted[batch][0].ids;
    if (!of_batch.defined()) continue;
    for (size_t store = 0; store < kStores; ++store) {
      Tensor out = empty({of_batch.numel(), width_of(store)}, kFloat32);
      rows.gather(batch, 0, store, held[store], out);
      CHECK(same(out, rows_of(of_batch, store)));
    }
  }
}

Wanted wanted_of(size_t num_batches, int64_t count, uint64_t key) {
  Wanted wanted;
  for (size_t batch = 0; batch < num_batches; ++batch) {
    auto& of_batch = wanted.emplace_back(1);
    if (batch != 1) of_batch[0].ids = ids(random_numbers(count, kIds, 10 * key + batch));  // the second wants nothing
  }
  return wanted;
}

}  // namespace

TEST("row lookup: every row comes from where it lies, and is asked for once") {
  const auto pool = std::make_shared<ThreadPool>(2);
  for (const bool repeats : {false, true}) {
    for (size_t num_batches = 1; num_batches <= 4; ++num_batches) {
      const auto plan = make_plan(nullptr, repeats);
      const Wanted wanted = wanted_of(num_batches, 700, num_batches);
      RowsExchange exchange(plan, wanted, pool);
      CHECK(exchange.asks());
      take_all(exchange);
      check_rows_of(*exchange.rows(), held_rows(*plan), wanted);
      const RowLookup::Counts counts = exchange.rows()->counts(0, 0);
      CHECK(counts.asked > 400 && counts.asked < 700 && counts.copied == 0 && counts.recent == 0);
      if (num_batches > 1) CHECK_THROWS(InvalidArgument, exchange.rows()->counts(1, 0));
    }
  }
}

TEST("row lookup: rows that were kept are not asked for, and those that were found stay where they are") {
  const auto pool = std::make_shared<ThreadPool>(1);
  const auto recent = std::make_shared<RecentRows>(kStores, kIds, 64, 4);
  const auto plan = make_plan(recent);
  const std::vector<Stores> held = held_rows(*plan);
  std::vector<std::pair<std::shared_ptr<RowLookup>, Wanted>> found;  // read later, when blocks began anew
  int64_t num_recent = 0;
  for (uint64_t round = 0; round < 40; ++round) {
    Wanted wanted = wanted_of(1, 100, round % 7);
    RowsExchange exchange(plan, wanted, pool);
    take_all(exchange);
    num_recent += exchange.rows()->counts(0, 0).recent;
    exchange.rows()->keep();
    found.emplace_back(exchange.rows(), std::move(wanted));
  }
  CHECK(num_recent > 500);
  CHECK_THROWS(InvalidArgument, RowsExchange(plan, wanted_of(1, 100, 50), pool).rows()->keep());  // nobody has answered
  recent->forget();
  for (const auto& [rows, wanted] : found) check_rows_of(*rows, held, wanted);
}

TEST("row lookup: rows at hand, copies and rows that were kept are found by one table, as one by one") {
  const auto pool = std::make_shared<ThreadPool>(1);
  const Book book = make_book();
  // Copies of every third id, also of those at hand, whose rows are read where they are; they lie in another order.
  std::vector<int64_t> copied;
  for (int64_t id = 1; id < kIds; id += 3) copied.push_back(id);
  const auto num_copies = static_cast<int64_t>(copied.size());
  std::vector<int64_t> rows(copied.size()), by_row(copied.size());
  for (int64_t i = 0; i < num_copies; ++i) rows[i] = (7 * i + 3) % num_copies, by_row[rows[i]] = copied[i];
  const Tensor copy_rows = ids(rows);
  const auto listed = std::make_shared<SortedIds>(ids(copied), nullptr, true);
  std::vector<std::shared_ptr<RecentRows>> recent;
  std::vector<std::shared_ptr<RowPlan>> plans;
  for (const bool by_one_table : {false, true}) {
    recent.push_back(std::make_shared<RecentRows>(kStores, kIds, 100, 4));
    if (by_one_table) recent.back()->find_also({book, kIsAsked, listed, copy_rows});
    CHECK_EQUAL(recent.back()->at_hand() != nullptr, by_one_table);
    auto plan = make_plan(nullptr, false, book);
    plan->groups[0].copied = listed;
    plan->groups[0].copy_rows = copy_rows;
    plan->groups[0].recent = recent.back();
    check_plan(*plan);
    plans.push_back(std::move(plan));
  }
  std::vector<Stores> held = held_rows(*plans[0]);
  for (size_t store = 0; store < kStores; ++store) held[store][kPartitions] = store_of(rows_of(ids(by_row), store));
  RowLookup::Counts sums;
  for (uint64_t round = 0; round < 60; ++round) {
    const Wanted wanted = wanted_of(1 + round % 3, 100, round % 9);
    if (round == 40) {
      for (const auto& kept : recent) kept->forget();
    }
    std::vector<std::unique_ptr<RowsExchange>> exchanges;
    for (const auto& plan : plans) {
      exchanges.push_back(std::make_unique<RowsExchange>(plan, wanted, pool));
      take_all(*exchanges.back());
      check_rows_of(*exchanges.back()->rows(), held, wanted);
      exchanges.back()->rows()->keep();
    }
    for (size_t batch = 0; batch < wanted.size(); ++batch) {
      if (!wanted[batch][0].ids.defined()) continue;
      const RowLookup& one = *exchanges[0]->rows();
      const RowLookup& other = *exchanges[1]->rows();
      CHECK(same(one.located(batch, 0).owners, other.located(batch, 0).owners));
      CHECK(same(one.located(batch, 0).rows, other.located(batch, 0).rows));
      const RowLookup::Counts counts = one.counts(batch, 0), others = other.counts(batch, 0);
      CHECK(counts.copied == others.copied && counts.recent == others.recent && counts.asked == others.asked);
      sums.copied += counts.copied, sums.recent += counts.recent, sums.asked += counts.asked;
    }
  }
  CHECK(sums.copied > 500 && sums.recent > 500 && sums.asked > 500);
  CHECK_THROWS(UnknownId, RowsExchange(plans[1], {{{ids({1, 2, kIds}), std::nullopt}}}, pool));
  CHECK_THROWS(UnknownId, RowsExchange(plans[1], {{{ids({-1}), std::nullopt}}}, pool));
  plans[1]->groups[0].copy_rows = ids(rows);
  CHECK_THROWS(InvalidArgument, check_plan(*plans[1]));  // others, perhaps
  plans[1]->groups[0].copy_rows = copy_rows;
  plans[1]->groups[0].copied = nullptr;
  CHECK_THROWS(InvalidArgument, check_plan(*plans[1]));
  CHECK_THROWS(InvalidArgument, recent[0]->find_also({make_book(), {true, false}, nullptr, {}}));
  CHECK_THROWS(InvalidArgument, recent[0]->find_also({PartitionBook::permuted(kIds - 1, 3, 5), kIsAsked, nullptr, {}}));
  CHECK_THROWS(InvalidArgument, recent[0]->find_also({book, kIsAsked, listed, ids({1})}));
  CHECK_THROWS(InvalidArgument, recent[0]->find_also({book, kIsAsked, listed, copy_rows}));  // rows were kept
  CHECK_THROWS(InvalidArgument, RecentRows(kStores, kIds, 100, 4).find_also({nullptr, kIsAsked, nullptr, {}}));
  const auto two = std::make_shared<SortedIds>(ids({kIds - 1, kIds + 7}), nullptr);  // nobody looks up the second
  for (const int64_t wrong : {int64_t{-1}, int64_t{2}, int64_t{1} << 27, int64_t{1} << 40}) {
    RecentRows table(kStores, kIds, 100, 4);
    CHECK_THROWS(InvalidArgument, table.find_also({book, kIsAsked, two, ids({0, wrong})}));
    CHECK(table.at_hand() == nullptr);
    table.find_also({book, kIsAsked, two, ids({0, 1})});
    CHECK(table.at_hand() != nullptr);
    CHECK_THROWS(InvalidArgument, table.find_also({book, kIsAsked, two, ids({0, 1})}));
  }
  RecentRows hashed(kStores, kIds, 1, 1);  // no table of all ids
  hashed.find_also({book, kIsAsked, listed, copy_rows});
  CHECK(hashed.at_hand() == nullptr);
}

TEST("row lookup: threads may look up, keep and forget at once") {
  const auto recent = std::make_shared<RecentRows>(kStores, kIds, 50, 4);
  const auto plan = make_plan(recent);
  const std::vector<Stores> held = held_rows(*plan);
  std::atomic<int64_t> num_recent{0};
  std::atomic<bool> is_wrong{false};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      try {
        const auto pool = std::make_shared<ThreadPool>(1);
        for (uint64_t round = 0; round < 60; ++round) {
          const Wanted wanted = wanted_of(1 + round % 3, 80, 3 * (round % 5) + thread);
          RowsExchange exchange(plan, wanted, pool);
          take_all(exchange);
          check_rows_of(*exchange.rows(), held, wanted);
          num_recent += exchange.rows()->counts(0, 0).recent;
          exchange.rows()->keep();
          if (thread == 0 && round % 20 == 19) recent->forget();
        }
      } catch (...) {
        is_wrong = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(!is_wrong);
  CHECK(num_recent > 0);
}

TEST("row lookup: answers of other rows than were asked for are refused") {
  const auto pool = std::make_shared<ThreadPool>(1);
  const auto plan = make_plan(nullptr);
  const Wanted wanted = wanted_of(1, 50, 1);
  const auto take = [&](const std::vector<Tensor>& answer) {
    RowsExchange exchange(plan, wanted, pool);
    CHECK_EQUAL(exchange.next().size(), 2u);
    const Received got = received(exchange::encode_answer(answer));
    exchange.take(0, got.value());
    return exchange.rows();
  };
  const int64_t count = [&] {
    RowsExchange exchange(plan, wanted, pool);
    const Received query = received(exchange.next()[0].query);
    return std::get<RowsQuery>(exchange::decode_query(query.value())).parts[0].ids.numel();
  }();
  const auto rows = [](std::vector<int64_t> shape, DType dtype = kFloat32) {
    Tensor made = empty(std::move(shape), dtype);
    std::fill_n(made.as<char>(), made.nbytes(), 0);
    return made;
  };
  CHECK_THROWS(rpc::ProtocolError, take({rows({count, 3})}));
  CHECK_THROWS(rpc::ProtocolError, take({rows({count, 3}), rows({count, 1}), rows({count, 1})}));
  CHECK_THROWS(rpc::ProtocolError, take({rows({count - 1, 3}), rows({count, 1})}));
  CHECK_THROWS(rpc::ProtocolError, take({rows({count, 3}), Tensor{}}));
  CHECK_THROWS(rpc::ProtocolError, take({rows({count, 3}), rows({})}));
  const std::vector<Stores> held = held_rows(*plan);
  Tensor out = empty({50, 3}, kFloat32);
  CHECK_THROWS(InvalidArgument, take({rows({count, 3}), rows({count, 1})})->gather(0, 0, 0, held[0], out));  // another
  CHECK_THROWS(InvalidArgument, take({rows({count, 4}), rows({count, 1})})->gather(0, 0, 0, held[0], out));
  CHECK_THROWS(InvalidArgument, take({rows({count, 3}, kInt32), rows({count, 1})})->gather(0, 0, 0, held[0], out));
}

TEST("row lookup: what does not fit together is refused") {
  const auto pool = std::make_shared<ThreadPool>(1);
  const auto plan = make_plan(nullptr);
  const auto look_up = [&](const Wanted& wanted) { return RowsExchange(plan, wanted, pool).asks(); };
  CHECK(!look_up({}));
  CHECK(!look_up(Wanted(2, std::vector<RowLookup::Wanted>(1))));
  CHECK_THROWS(InvalidArgument, look_up(Wanted(1)));
  CHECK_THROWS(UnknownId, look_up({{{ids({1, kIds}), std::nullopt}}}));
  RowsExchange exchange(plan, wanted_of(1, 50, 1), pool);
  take_all(exchange);
  for (const int64_t count : {49, 51}) {
    const Tensor out = empty({count, 3}, kFloat32);
    CHECK_THROWS(InvalidArgument, exchange.rows()->gather(0, 0, 0, held_rows(*plan)[0], out));
  }
  CHECK_THROWS(InvalidArgument, look_up({{{{}, LocatedRows{}}}}));  // the book says where rows lie
  CHECK_THROWS(InvalidArgument, make_plan(std::make_shared<RecentRows>(1, kIds, 8, 2)));
  CHECK_THROWS(InvalidArgument, RecentRows(0, kIds, 8, 2));
}

}  // namespace gld::test

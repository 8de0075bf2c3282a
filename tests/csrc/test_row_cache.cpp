// Gathers by way of a cache: what comes out, and what the cache holds, with threads in any order.
#include <cstring>
#include <numeric>
#include <set>

#include "arrays.h"
#include "check.h"
#include "feature/cuda/gather_steps.h"
#include "feature/cuda/row_cache_steps.h"
#include "host_executor.h"

namespace gld::test {
namespace {

constexpr int64_t kNumRows = 500, kFirstCached = 60;

// Rows of bytes in two pieces, of which the second is cached, and a cache that gathers go through.
struct Cached {
  int64_t row_bytes, num_slots;
  std::vector<char> table, slots;
  std::vector<uint64_t> uses, slot_rows, counts;
  int64_t num_gathers = 0, num_executors = 0;

  Cached(int64_t bytes_of_row, int64_t slots_there)
      : row_bytes(bytes_of_row),
        num_slots(slots_there),
        table(kNumRows * row_bytes),
        slots(num_slots * row_bytes),
        uses(kNumRows - kFirstCached),
        slot_rows(num_slots, RowCacheView::kEmpty),
        counts(2 * RowCacheView::kSpread) {
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<char>(mix64(i));
  }

  WantedRows wanted(const Tensor& ids, const std::vector<int64_t>& positions, std::vector<char>& out, int64_t bytes_out,
                    std::vector<int32_t>& answers, uint64_t* status) {
    DeviceRows store{};
    store.num_parts = 2;
    store.row_bytes = row_bytes;
    store.parts[0] = table.data();
    store.parts[1] = table.data() + kFirstCached * row_bytes;
    store.bounds[1] = kFirstCached;
    store.bounds[2] = kNumRows;
    const RowCacheView cache{slots.data(),  uses.data(),    slot_rows.data(),
                             counts.data(), answers.data(), num_slots,
                             row_bytes,     kFirstCached,   static_cast<uint16_t>(++num_gathers)};
    return {store,
            IdReader(Tensor()),
            kNumRows,
            IdReader(ids),
            positions.empty() ? nullptr : positions.data(),
            ids.shape[0],
            static_cast<int64_t>(out.size()) / bytes_out,
            out.data(),
            bytes_out,
            status,
            cache};
  }

  // Gathers, by lines and by rows in turn, and checks what came and what is held now. Ids that do not exist get zeros.
  void gather(const std::vector<int64_t>& numbers, ThreadPool& pool) {
    const Tensor wanted_ids = ids(numbers);
    std::vector<char> out(numbers.size() * row_bytes, 0x55), expected = out;
    std::vector<int32_t> answers(numbers.size(), 12345);
    uint64_t status = ~uint64_t{0}, bad = status;
    HostExecutor executor(pool, num_executors++);
    WantedRows rows = wanted(wanted_ids, {}, out, row_bytes, answers, &status);
    rows.is_over_link = num_executors % 2 == 0;
    run_cache(executor, rows);
    int64_t word = 16;
    while (row_bytes % word != 0) word /= 2;
    run_copy(executor, rows, word);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const bool is_there = numbers[i] >= 0 && numbers[i] < kNumRows;
      if (!is_there) bad = std::min<uint64_t>(bad, i);
      char* row = expected.data() + i * row_bytes;
      is_there ? std::memcpy(row, table.data() + numbers[i] * row_bytes, row_bytes) : std::memset(row, 0, row_bytes);
    }
    CHECK(out == expected);
    CHECK_EQUAL(status, bad);
    CHECK_EQUAL(executor.num_launches(), numbers.empty() ? 0 : 3);
    check_held();
  }

  // A row is in one slot at most, its word says in which, and that holds its bytes.
  void check_held() const {
    std::set<uint64_t> held;
    for (int64_t slot = 0; slot < num_slots; ++slot) {
      const uint64_t row = slot_rows[slot];
      if (row == RowCacheView::kEmpty) continue;
      CHECK(held.insert(row).second);
      CHECK_EQUAL(RowUse{uses[row]}.slot(), slot);
      CHECK(std::memcmp(slots.data() + slot * row_bytes, table.data() + (kFirstCached + row) * row_bytes, row_bytes) ==
            0);
    }
    for (size_t row = 0; row < uses.size(); ++row) CHECK_EQUAL(RowUse{uses[row]}.slot() >= 0, held.count(row) == 1);
  }

  int64_t held() const { return num_slots - std::count(slot_rows.begin(), slot_rows.end(), RowCacheView::kEmpty); }
  bool holds(int64_t row) const { return RowUse{uses[row - kFirstCached]}.slot() >= 0; }
  int64_t hits() const { return std::accumulate(counts.begin(), counts.begin() + RowCacheView::kSpread, int64_t{0}); }
  int64_t misses() const { return std::accumulate(counts.begin() + RowCacheView::kSpread, counts.end(), int64_t{0}); }
};

TEST("row cache: rows are those of the table, whatever it holds, in any order of threads") {
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (const auto& [row_bytes, num_slots] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {2, 7}, {6, 16}, {7, 40}, {64, 100}, {200, 33}, {512, 440}, {130, 16}}) {
      Cached cached(row_bytes, num_slots);
      int64_t num_cached = 0;
      for (uint64_t batch = 0; batch < 40; ++batch) {
        std::vector<int64_t> wanted = random_numbers(120, kNumRows, batch);
        for (int64_t hot = 0; hot < 30; ++hot) wanted.push_back(kFirstCached + hot * hot % 100);  // some twice
        if (batch % 5 == 0) wanted.insert(wanted.begin() + 3, {-1, kNumRows, kNumRows + 7});
        for (int64_t id : wanted) num_cached += id >= kFirstCached && id < kNumRows;
        cached.gather(wanted, pool);
      }
      CHECK_EQUAL(cached.hits() + cached.misses(), num_cached);
      CHECK(cached.hits() > 0);
      CHECK(cached.held() > 0);
    }
  }
}

TEST("row cache: nothing is wanted, one row a thousand times, more rows than slots in one set") {
  ThreadPool pool(4);
  Cached one(8, 1), set(8, RowCacheView::kWays);
  std::vector<int64_t> all(kNumRows - kFirstCached);
  std::iota(all.begin(), all.end(), kFirstCached);
  for (int round = 0; round < 20; ++round) {
    one.gather({}, pool);
    one.gather(std::vector<int64_t>(1000, 77), pool);
    set.gather(all, pool);
  }
  CHECK(one.holds(77));
  CHECK_EQUAL(one.hits(), 19 * 1000);
  CHECK_EQUAL(one.misses(), 1000);
  CHECK_EQUAL(set.held(), RowCacheView::kWays);
  // Those that came first stay: others count for no more.
  CHECK_EQUAL(set.hits(), 19 * RowCacheView::kWays);
}

TEST("row cache: what is used often stays, what comes once replaces nothing, and what was used long ago goes") {
  ThreadPool pool(2);
  Cached cached(16, 1);
  cached.gather({100}, pool);
  cached.gather({100}, pool);
  for (int64_t once = 200; once < 230; ++once) cached.gather({once}, pool);
  CHECK(cached.holds(100));
  for (int64_t i = 0; i < RowUse::kHalfLife; ++i) cached.gather({}, pool);
  cached.gather({230}, pool);  // it counts for one use, as 100 does by now
  CHECK(cached.holds(100));
  for (int64_t i = 0; i < RowUse::kHalfLife; ++i) cached.gather({}, pool);
  cached.gather({231}, pool);
  CHECK(cached.holds(231));
  CHECK(!cached.holds(100));
}

TEST("row cache: gathers are counted modulo 2^16") {
  ThreadPool pool(2);
  Cached cached(4, 20);
  cached.num_gathers = 0xFFF0;
  for (uint64_t batch = 0; batch < 40; ++batch) cached.gather(random_numbers(90, kNumRows, batch), pool);
  CHECK(cached.hits() > 0);
}

TEST("row cache: rows are cast on their way out, and kept as they are stored") {
  ThreadPool pool(4);
  for (const auto& [from, bytes] : std::vector<std::pair<ElementType, int64_t>>{{ElementType::kBfloat16, 2},
                                                                                {ElementType::kInt8, 1},
                                                                                {ElementType::kFloat32, 4},
                                                                                {ElementType::kFloat64, 8}}) {
    const int64_t columns = 5;
    Cached cached(columns * bytes, 24);
    for (char& byte : cached.table) byte &= 0x3F;  // no numbers that are none
    for (uint64_t batch = 0; batch < 20; ++batch) {
      const std::vector<int64_t> wanted = random_numbers(64, 100, batch);
      std::vector<int64_t> places(wanted.size());
      for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int64_t>(2 * (places.size() - 1 - i));
      places[3] = -1;  // it goes nowhere, and its row into no slot
      std::vector<char> out(2 * wanted.size() * columns * 4);
      std::vector<int32_t> answers(wanted.size());
      uint64_t status = ~uint64_t{0};
      HostExecutor executor(pool, batch);
      const Tensor wanted_ids = ids(wanted);
      const WantedRows rows = cached.wanted(wanted_ids, places, out, columns * 4, answers, &status);
      const CastElement cast{from, ElementType::kFloat32};
      run_cache(executor, rows);
      run_cast(executor, rows, columns, cast);
      CHECK_EQUAL(status, 3u);
      cached.check_held();
      for (size_t i = 0; i < wanted.size(); ++i) {
        std::vector<char> expected(columns * 4);
        for (int64_t column = 0; column < columns; ++column)
          cast(cached.table.data() + wanted[i] * cached.row_bytes, expected.data(), column);
        if (i != 3) CHECK(std::memcmp(out.data() + places[i] * columns * 4, expected.data(), columns * 4) == 0);
      }
    }
    CHECK(cached.hits() > 0);
  }
}

}  // namespace
}  // namespace gld::test

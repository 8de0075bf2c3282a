// Relabel tables: the same local ids as a map gives, whatever the sizes of batches, and what is cleared for that.
#include <sys/mman.h>
#include <unistd.h>

#include <unordered_map>

#include "arrays.h"
#include "check.h"
#include "sampling/batch_builder.h"
#include "sampling/relabel_table.h"

namespace gld::test {
namespace {

constexpr int64_t kMany = 30'000'000;
constexpr int64_t kMiB = int64_t{1} << 20;

// What a table of kMany nodes has in memory.
int64_t resident_bytes(const DenseRelabelTable& table) {
  const size_t page = sysconf(_SC_PAGESIZE), bytes = kMany * sizeof(uint32_t);
  std::vector<unsigned char> is_resident((bytes + page - 1) / page);
  CHECK_EQUAL(mincore(const_cast<uint32_t*>(table.entries()), bytes, is_resident.data()), 0);
  int64_t count = 0;
  for (const unsigned char flags : is_resident) count += flags & 1;
  return count * static_cast<int64_t>(page);
}

// One batch of `count` random nodes below `num_nodes`, beside a map.
template <typename Table>
void check_batch(Table& table, int64_t max_local, int64_t count, int64_t num_nodes, uint64_t seed) {
  table.begin(max_local);
  std::unordered_map<int64_t, uint32_t> expected;
  for (const int64_t id : random_numbers(count, num_nodes, seed)) {
    const auto next = static_cast<uint32_t>(expected.size());
    const auto [place, is_first] = expected.emplace(id, next);
    uint32_t is_new;
    const uint32_t local = table.insert(id, next, &is_new);
    CHECK_EQUAL(local, place->second);
    CHECK_EQUAL(is_new != 0, is_first);
  }
}

TEST("relabel table: an epoch's short last batch and the next first one clear and touch nothing") {
  DenseRelabelTable table(kMany);
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (int batch = 0; batch < 3; ++batch) check_batch(table, 1 << 20, 2000, 100'000, 10 * epoch + batch);
    check_batch(table, 1 << 12, 200, 100'000, 10 * epoch + 9);
  }
  CHECK_EQUAL(table.num_clears(), 0);
  CHECK(resident_bytes(table) < 20 * kMiB);  // the table is 114
}

TEST("relabel table: a larger batch clears the table once") {
  DenseRelabelTable table(kMany);
  check_batch(table, 1 << 12, 200, 1000, 1);
  CHECK(table.begin_clears(1 << 20));
  check_batch(table, 1 << 20, 200, 1000, 2);
  CHECK_EQUAL(table.num_clears(), 1);
  for (int batch = 0; batch < 100; ++batch) {
    const int64_t max_local = batch % 2 == 0 ? 1 << 12 : 1 << 20;
    CHECK(!table.begin_clears(max_local));
    check_batch(table, max_local, 200, 1000, batch);
  }
  CHECK_EQUAL(table.num_clears(), 1);
}

TEST("relabel table: clearing gives back the memory of what batches no longer reach") {
  DenseRelabelTable table(kMany);
  table.begin(kMany);
  uint32_t is_new;
  for (int64_t id = 0; id < kMany; id += 1024) table.insert(id, 0, &is_new);
  CHECK(resident_bytes(table) > 100 * kMiB);
  while (!table.begin_clears(kMany)) table.begin(kMany);
  CHECK_EQUAL(table.num_clears(), 0);
  check_batch(table, kMany, 2000, 100'000, 3);
  CHECK_EQUAL(table.num_clears(), 1);
  CHECK(resident_bytes(table) < 20 * kMiB);
  table.insert(kMany - 1024, 77, &is_new);
  CHECK(is_new != 0);
}

TEST("relabel table: one huge batch does not make later ones clear the table often") {
  constexpr int64_t kNodes = 1000;
  DenseRelabelTable table(kNodes);
  check_batch(table, 1 << 28, 200, kNodes, 1);
  for (int batch = 0; batch < 5000; ++batch) check_batch(table, 1 << 12, 20, kNodes, batch);
  CHECK(table.num_clears() <= 2);
}

TEST("relabel tables: batches of all sizes, beside a map") {
  for (const int64_t num_nodes : {100, 5000, 400'000}) {  // filled, and dropped
    DenseRelabelTable dense(num_nodes);
    HashRelabelTable hash;
    const std::vector<int64_t> bits = random_numbers(400, 30, 5), counts = random_numbers(400, 100, 6);
    for (size_t batch = 0; batch < bits.size(); ++batch) {
      const int64_t max_local = std::max(int64_t{1} << bits[batch], counts[batch] + 1);
      check_batch(dense, max_local, counts[batch], num_nodes, batch);
      check_batch(hash, max_local, counts[batch], num_nodes, batch);
    }
    CHECK(dense.num_clears() > 10);
  }
}

TEST("batches: a builder clears its tables for a larger batch, and no more") {
  BatchBuilder builder({kMany, 10}, {});
  CHECK(!builder.begin_clears(100, 1000, false));
  builder.begin(100, 1000, false, false);
  CHECK(!builder.begin_clears(10, 100, false));
  builder.begin(10, 100, false, false);
  CHECK(builder.begin_clears(1000, 100'000, false));
  CHECK(!builder.begin_clears(1000, 100'000, true));  // trees have a table of their own
  CHECK_THROWS(InvalidArgument, builder.begin(-1, 100, false, false));
  CHECK_THROWS(InvalidArgument, builder.begin(int64_t{1} << 62, int64_t{1} << 62, false, false));
  CHECK_THROWS(InvalidArgument, builder.begin(int64_t{1} << 40, -1, false, true));
}

}  // namespace
}  // namespace gld::test

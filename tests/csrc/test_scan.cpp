// Running sums by groups of threads: those of a loop.
#include <vector>

#include "arrays.h"
#include "check.h"
#include "common/cuda/group_scan.h"
#include "host_executor.h"

namespace gld::test {
namespace {

void check_scan(int64_t count, int64_t max_count) {
  ThreadPool pool(3);
  HostExecutor executor(pool, 5);
  const std::vector<int64_t> numbers = random_numbers(count, 1000, 8);
  std::vector<int64_t> before(count);
  std::vector<uint64_t> words(TileSums::num_words(max_count));
  int64_t total = -1, expected = 0;
  run_scan(executor, max_count, SumCounts{count, numbers.data(), before.data(), &total}, words.data());
  for (int64_t i = 0; i < count; ++i) {
    if (before[i] != expected) CHECK_EQUAL(before[i], expected);
    expected += numbers[i];
  }
  CHECK_EQUAL(total, expected);
}

TEST("scan: none, a part of a tile, whole tiles, and fewer than were bounded") {
  for (int64_t count : {int64_t{0}, int64_t{1}, kScanTile - 1, kScanTile, kScanTile + 1, 7 * kScanTile + 13}) {
    check_scan(count, count);
    check_scan(count, 3 * count + 5000);
  }
}

TEST("scan: more tiles than a tile has numbers") { check_scan(kScanTile * kScanTile + kScanTile + 3, 5 << 20); }

}  // namespace
}  // namespace gld::test

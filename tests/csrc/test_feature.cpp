// Gathering rows.
#include <numeric>

#include "arrays.h"
#include "check.h"
#include "feature/gather.h"

namespace gld::test {
namespace {

// Row r holds r * width, r * width + 1, ...
Tensor table(int64_t first_row, int64_t rows, int64_t width) {
  std::vector<int64_t> numbers(rows * width);
  std::iota(numbers.begin(), numbers.end(), first_row * width);
  Tensor out = ids(numbers);
  out.shape = {rows, width};
  return out;
}

TEST("gather: rows of several pieces, with any number of threads") {
  for (int64_t width : {1, 3, 40, 600}) {
    const RowStore store = make_row_store({table(0, 100, width), table(100, 0, width), table(100, 157, width)});
    const std::vector<int64_t> rows = random_numbers(5000, 257, 3);
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      const Tensor out = gather_rows(store, ids(rows), {}, {}, pool);
      for (size_t i = 0; i < rows.size(); ++i)
        for (int64_t j : {int64_t{0}, width - 1}) CHECK_EQUAL(out.as<int64_t>()[i * width + j], rows[i] * width + j);
    }
  }
}

TEST("gather: into given places") {
  ThreadPool pool(3);
  const RowStore store = make_row_store({table(0, 50, 4)});
  const int64_t count = 4000;
  std::vector<int64_t> rows = random_numbers(count, 50, 8), places(count);
  for (int64_t i = 0; i < count; ++i) places[i] = count - 1 - i;
  Tensor out = empty({count, 4}, kInt64);
  gather_rows(store, ids(rows), ids(places), out, pool);
  for (int64_t i = 0; i < count; ++i) CHECK_EQUAL(out.as<int64_t>()[places[i] * 4 + 3], rows[i] * 4 + 3);
}

TEST("gather: rows and places outside are refused, from any thread") {
  ThreadPool pool(4);
  const RowStore store = make_row_store({table(0, 50, 4)});
  std::vector<int64_t> rows(6000, 1);
  for (int64_t bad : {int64_t{50}, int64_t{-1}, INT64_MAX}) {
    rows[5555] = bad;
    CHECK_THROWS(UnknownId, gather_rows(store, ids(rows), {}, {}, pool));
  }
  const Tensor out = empty({1, 4}, kInt64);
  CHECK_THROWS(InvalidArgument, gather_rows(store, ids({0}), ids({1}), out, pool));
  CHECK_THROWS(InvalidArgument, gather_rows(store, ids({0}), ids({-1}), out, pool));
  CHECK_EQUAL(gather_rows(store, ids({}), {}, {}, pool).numel(), 0);
}

}  // namespace
}  // namespace gld::test

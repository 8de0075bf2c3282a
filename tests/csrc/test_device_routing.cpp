// The kernels that divide a frontier among its owners and put their answers back, run on the host: what the CPU makes,
// bit by bit.
#include <limits>
#include <vector>

#include "arrays.h"
#include "batch_memory.h"
#include "check.h"
#include "host_executor.h"
#include "routing/device_routing.h"

namespace gld::test {
namespace {

using Book = std::shared_ptr<const PartitionBook>;

Split empty_split(int64_t count, int num_partitions) {
  return {empty({count}, kInt64), empty({count}, kInt64), empty({count}, kInt64), empty({num_partitions + 1}, kInt64)};
}

void check_split(const Book& book, const Tensor& ids) {
  ThreadPool pool(3);
  const Split expected = split_by_owner(ids, *book, &pool);
  const DeviceBook placed(*book, book->arrays());
  const Memory scratch(SplitLayout(ids.numel(), book->num_partitions()).num_bytes);
  for (uint64_t order : {51, 52}) {
    HostExecutor executor(pool, order);
    const Split found = empty_split(ids.numel(), book->num_partitions());
    uint64_t status = 3;
    run_split(placed.view(), ids, found, &status, scratch.begin(), executor);
    CHECK_EQUAL(status, ~uint64_t{0});
    CHECK(same(found.ids, expected.ids));
    CHECK(same(found.rows, expected.rows));
    CHECK(same(found.positions, expected.positions));
    CHECK(same(found.offsets, expected.offsets));
  }
}

template <typename Owner>
Book table_book(const std::vector<int64_t>& owners, int num_partitions, DType dtype, bool narrow_rows) {
  std::vector<int64_t> sizes(num_partitions), rows;
  for (int64_t owner : owners) rows.push_back(sizes[owner]++);
  const Tensor row_table = narrow_rows ? ids32({rows.begin(), rows.end()}) : ids(rows);
  return PartitionBook::table(tensor(std::vector<Owner>(owners.begin(), owners.end()), dtype), row_table,
                              num_partitions);
}

std::vector<Book> books() {
  const std::vector<int64_t> owners = random_numbers(900, 5, 53);
  return {PartitionBook::range(ids({0, 300, 300, 880, 900})),
          PartitionBook::range(ids({0, 900})),
          PartitionBook::permuted(900, 7, 99),
          PartitionBook::permuted(900, 50, 98),
          table_book<uint8_t>(owners, 5, kUInt8, true),
          table_book<uint16_t>(owners, 6, {Kind::kUInt, 16}, false),
          table_book<int32_t>(owners, 5, kInt32, true)};
}

TEST("device split: that of the CPU, for every book; none, few and many ids, some twice") {
  for (const Book& book : books()) {
    check_split(book, ids({}));
    check_split(book, ids32({899, 0, 0, 300}));
    check_split(book, ids(random_numbers(3 * kScanTile, 900, 54)));
  }
}

TEST("device split: the first id that the book does not hold is told") {
  ThreadPool pool(2);
  for (const Book& book : books()) {
    const Tensor wanted = ids({5, 900, -1});
    const DeviceBook placed(*book, book->arrays());
    const Memory scratch(SplitLayout(3, book->num_partitions()).num_bytes);
    uint64_t status = 0;
    HostExecutor executor(pool, 55);
    run_split(placed.view(), wanted, empty_split(3, book->num_partitions()), &status, scratch.begin(), executor);
    CHECK_EQUAL(status, 1u);
  }
}

// What owners answer: node v has v % 4 neighbors, or 3000 if it is 7; v * 10000 + i is the i-th.
NeighborPart answer(const std::vector<int64_t>& asked, bool narrow, bool with_edge_ids) {
  std::vector<int64_t> counts, neighbors, edge_ids;
  for (int64_t id : asked) {
    counts.push_back(id == 7 ? 3000 : id % 4);
    for (int64_t i = 0; i < counts.back(); ++i) neighbors.push_back(id * 10000 + i), edge_ids.push_back(id * 7 + i);
  }
  if (!narrow) return {ids(counts), ids(neighbors), with_edge_ids ? ids(edge_ids) : Tensor{}};
  return {ids32({counts.begin(), counts.end()}), ids32({neighbors.begin(), neighbors.end()}),
          with_edge_ids ? ids32({edge_ids.begin(), edge_ids.end()}) : Tensor{}};
}

struct Stitched {
  Neighbors neighbors;
  StitchStatus status;
};

Stitched stitch(const StitchInput& input, uint64_t order, ThreadPool& pool) {
  const StitchShape shape = stitch_shape(input);
  Stitched out{{empty({shape.num_ids}, kInt64), empty({shape.num_neighbors}, shape.neighbors),
                shape.with_edge_ids ? empty({shape.num_neighbors}, shape.edge_ids) : Tensor{}},
               {}};
  const Memory scratch(StitchLayout(shape.num_ids).num_bytes);
  HostExecutor executor(pool, order);
  StitchChain<HostExecutor>(input, out.neighbors, &out.status, scratch.begin(), executor).run();
  return out;
}

StitchInput answered(const Book& book, const std::vector<int64_t>& frontier, const std::vector<bool>& narrow,
                     bool with_edge_ids) {
  const Split split = split_by_owner(ids(frontier), *book, nullptr);
  StitchInput input{split.positions, split.offsets, {}};
  for (int p = 0; p < book->num_partitions(); ++p) {
    const int64_t *first = split.ids.as<int64_t>(), *bounds = split.offsets.as<int64_t>();
    const std::vector<int64_t> asked(first + bounds[p], first + bounds[p + 1]);
    input.parts.push_back(asked.empty() ? NeighborPart{} : answer(asked, narrow[p % narrow.size()], with_edge_ids));
  }
  return input;
}

void check_stitch(const StitchInput& input) {
  ThreadPool pool(3);
  const Neighbors expected = stitch_neighbors(input.positions, input.offsets, input.parts, &pool);
  for (uint64_t order : {56, 57}) {
    const Stitched found = stitch(input, order, pool);
    CHECK(found.status.is_good());
    CHECK(same(found.neighbors.counts, expected.counts));
    CHECK(same(found.neighbors.neighbors, expected.neighbors));
    CHECK(same(found.neighbors.edge_ids, expected.edge_ids));
  }
}

TEST("device stitch: that of the CPU; all dtypes, owners that were not asked, nodes without neighbors") {
  for (const Book& book : books())
    for (bool with_edge_ids : {false, true}) {
      check_stitch(answered(book, random_numbers(5000, 900, 58), {false, true}, with_edge_ids));
      check_stitch(answered(book, {7, 3, 7, 4, 899, 8}, {true}, with_edge_ids));
      check_stitch(answered(book, {4, 8, 12}, {true, false}, with_edge_ids));  // none has a neighbor
      check_stitch(answered(book, {}, {false}, with_edge_ids));
    }
}

TEST("device stitch: wrong counts and positions are told, and nothing is written for them") {
  ThreadPool pool(2);
  const Book book = PartitionBook::range(ids({0, 4, 8, 12}));
  const auto spoiled = [&](size_t part, int64_t count, int64_t place, int64_t position) {
    StitchInput input = answered(book, {1, 5, 2, 9, 6}, {false}, true);
    if (count != 0) input.parts[part].counts.as<int64_t>()[0] = count;
    if (place >= 0) input.positions.as<int64_t>()[place] = position;
    return stitch(input, 59, pool).status;
  };
  const uint64_t good = ~uint64_t{0};
  const StitchStatus one_more = spoiled(1, 2, -1, 0);
  CHECK(one_more.count == good && one_more.position == good && one_more.part == 1);
  // Two ids of the first part stand before it. It has three neighbors.
  for (int64_t impossible : {int64_t{-2}, int64_t{4}, int64_t{1} << 60, std::numeric_limits<int64_t>::max()}) {
    const StitchStatus status = spoiled(1, impossible, -1, 0);
    CHECK(status.count == 2 && status.part == 1);
  }
  for (int64_t bad : {int64_t{-1}, int64_t{5}}) CHECK_EQUAL(spoiled(0, 0, 3, bad).position, 3u);
  CHECK(spoiled(0, 0, 0, 1).position < 5);  // twice; whose it is depends on the order
  StitchInput wrapped = answered(book, std::vector<int64_t>(18, 5), {false}, true);              // a neighbor each
  for (int64_t i = 1; i < 17; ++i) wrapped.parts[1].counts.as<int64_t>()[i] = int64_t{1} << 60;  // in all 2^64 + 18
  wrapped.parts[1].counts.as<int64_t>()[0] = 17;
  CHECK_EQUAL(stitch(wrapped, 60, pool).status.count, 1u);
  StitchInput input = answered(book, {1, 5}, {false}, false);
  input.parts[2] = input.parts[1];
  CHECK_THROWS(InvalidArgument, stitch_shape(input));
}

}  // namespace
}  // namespace gld::test

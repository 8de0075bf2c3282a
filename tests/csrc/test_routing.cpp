// Splitting by owner and stitching answers together.
#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "arrays.h"
#include "check.h"
#include "routing/sorted_ids.h"
#include "routing/split.h"
#include "sampling/neighbor_sampler.h"

namespace gld::test {
namespace {

using Book = std::shared_ptr<const PartitionBook>;

std::vector<Book> books(int64_t num_ids) {
  std::vector<int64_t> owners(num_ids), rows(num_ids);
  for (int64_t i = 0; i < num_ids; ++i) owners[i] = i % 3, rows[i] = i / 3;
  std::vector<int32_t> narrow(owners.begin(), owners.end());
  return {PartitionBook::range(ids({0, num_ids / 5, num_ids / 5, num_ids})), PartitionBook::permuted(num_ids, 3, 77),
          PartitionBook::table(ids32(narrow), ids(rows), 3)};
}

TEST("routing: ids are found in a list in order, of any length, and others are not") {
  for (int64_t size : {0, 1, 2, 3, 15, 16, 17, 1000}) {
    std::vector<int64_t> sorted(size), asked, expected;
    for (int64_t i = 0; i < size; ++i) sorted[i] = 3 * i + 1;
    for (int64_t id = -2; id < 3 * size + 3; ++id) {
      asked.push_back(id);
      expected.push_back(id >= 1 && id % 3 == 1 && id < 3 * size ? id / 3 : -1);
    }
    const std::vector<int32_t> narrow(sorted.begin(), sorted.end());
    for (int threads = 1; threads <= 3; ++threads) {
      ThreadPool pool(threads);
      CHECK(values<int64_t>(SortedIds(ids(sorted), &pool).find(ids(asked), &pool)) == expected);
      CHECK(values<int64_t>(SortedIds(ids32(narrow), nullptr).find(ids(asked), nullptr)) == expected);
      CHECK(values<int64_t>(SortedIds(ids(sorted), &pool, true).find(ids(asked), &pool)) == expected);
      CHECK(values<int64_t>(SortedIds(ids32(narrow), nullptr, true).find(ids(asked), nullptr)) == expected);
    }
  }
}

TEST("routing: ids are found however they are spread, by an index of an eighth of their bytes") {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> dense(9000), crowded, wide{kLeast}, clusters;
  for (int64_t i = 0; i < 9000; ++i) dense[i] = i + 5;
  for (int64_t i = 0; i < 5000; ++i) crowded.push_back(i);  // all but one in one stretch of the index
  crowded.push_back(int64_t{1} << 40);
  for (int64_t i = -500; i < 500; ++i) wide.push_back(i * (int64_t{1} << 53) + 3);
  wide.push_back(kMost);
  for (int64_t i = 0; i < 8000; ++i) clusters.push_back((i / 40) * 100000 + i % 40 * 2);
  const std::vector<int64_t> two{-(int64_t{1} << 62), int64_t{1} << 62}, ends{kLeast, -1, 0, kMost};
  for (const auto& sorted : {two, ends}) {
    for (const bool with_bits : {false, true}) {
      const SortedIds list(ids(sorted), nullptr, with_bits);
      std::vector<int64_t> asked = sorted, expected(sorted.size());
      std::iota(expected.begin(), expected.end(), 0);
      asked.push_back(5), expected.push_back(-1);
      CHECK(values<int64_t>(list.find(ids(asked), nullptr)) == expected);
    }
  }
  for (const auto& sorted : {dense, crowded, wide, clusters}) {
    const auto size = static_cast<int64_t>(sorted.size());
    std::vector<int64_t> asked = sorted, expected(sorted.size());
    for (int64_t i = 0; i < size; ++i) expected[i] = i;
    for (int64_t i = 0; i + 1 < size; ++i)
      if (sorted[i] + 1 < sorted[i + 1]) asked.push_back(sorted[i] + 1), expected.push_back(-1);
    for (int64_t id : {kLeast, kMost, int64_t{-1}})
      if (!std::binary_search(sorted.begin(), sorted.end(), id)) asked.push_back(id), expected.push_back(-1);
    for (int threads = 1; threads <= 3; ++threads) {
      ThreadPool pool(threads);
      const SortedIds list(ids(sorted), &pool);
      CHECK(values<int64_t>(list.find(ids(asked), &pool)) == expected);
      CHECK(list.index_bytes() <= size);
      const SortedIds by_bits(ids(sorted), &pool, true);
      CHECK(values<int64_t>(by_bits.find(ids(asked), &pool)) == expected);
      CHECK(by_bits.index_bytes() <= 8 * size + 32);
      CHECK_EQUAL(by_bits.index_bytes() == list.index_bytes(), sorted != dense);  // bits where ids are near each other
    }
    if (sorted.front() < 0 || sorted.back() > std::numeric_limits<int32_t>::max()) continue;
    const SortedIds narrow(ids32({sorted.begin(), sorted.end()}), nullptr);
    CHECK(values<int64_t>(narrow.find(ids(asked), nullptr)) == expected);
    CHECK(narrow.index_bytes() <= size / 2);
  }
}

TEST("routing: a list that does not ascend is refused, and nothing beside the index is written") {
  ThreadPool pool(3);
  std::vector<int64_t> sorted(20000);
  for (int64_t i = 0; i < 20000; ++i) sorted[i] = 100 + i;
  for (const auto& [place, id] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 500}, {0, 90000}, {7, 106}, {4096, 5}, {8192, -1}, {12000, 1 << 30}, {19999, 3}, {19999, 20098}}) {
    std::vector<int64_t> damaged = sorted;
    damaged[place] = id;
    CHECK_THROWS(PartitionFormat, SortedIds(ids(damaged), &pool));
    CHECK_THROWS(PartitionFormat, SortedIds(ids32({damaged.begin(), damaged.end()}), nullptr));
  }
}

TEST("routing: of rows that were answered lately nobody is asked, whatever was kept before") {
  const int64_t num_ids = 20000;
  const auto held = PartitionBook::permuted(num_ids, 3, 7);
  const PartitionBook& book = *held;
  for (const int64_t block_rows : {int64_t{40}, int64_t{2000}}) {  // a table by hash, and one of all ids
    RecentIds recent(num_ids, block_rows, 4);
    std::vector<int64_t> kept(static_cast<size_t>(4 * block_rows), -1);  // by slot
    for (uint64_t round = 0; round < 30; ++round) {
      const std::vector<int64_t> given = random_numbers(3000, num_ids, round);
      for (const RecentIds::Run& run : recent.keep(ids(given))) {
        if (run.is_begun) std::fill_n(kept.begin() + run.block * block_rows, block_rows, -1);
        for (int64_t i = 0; i < run.sources.numel(); ++i) {
          int64_t& slot = kept[static_cast<size_t>(run.block * block_rows + run.first + i)];
          CHECK_EQUAL(slot, -1);
          slot = given[static_cast<size_t>(run.sources.as<int64_t>()[i])];
        }
      }
      const std::vector<int64_t> wanted = random_numbers(9000, num_ids, 100 + round);
      ThreadPool pool(1 + static_cast<int>(round % 3));
      const KeptCopies copies{nullptr, {}, &recent};
      const LocatedRows found = locate_rows(ids(wanted), book, {true, false, true}, &pool, copies);
      int64_t count = 0;
      for (size_t i = 0; i < wanted.size(); ++i) {
        const int32_t owner = found.owners.as<int32_t>()[i];
        const int64_t row = found.rows.as<int64_t>()[i];
        if (owner > 3) {
          CHECK_EQUAL(kept[static_cast<size_t>((owner - 4) * block_rows + row)], wanted[i]);
          ++count;
        } else if (owner != 1) {
          CHECK_EQUAL(found.ids.as<int64_t>()[found.offsets.as<int64_t>()[owner] + row], wanted[i]);
          CHECK(std::find(kept.begin(), kept.end(), wanted[i]) == kept.end());
        }
      }
      CHECK_EQUAL(found.num_recent, count);
    }
  }
  RecentIds recent(num_ids, 5, 2);
  CHECK_THROWS(InvalidArgument, recent.keep(ids({3, num_ids})));
  CHECK_THROWS(InvalidArgument, recent.keep(ids({3, -1})));
  const KeptCopies copies{nullptr, {}, &recent};
  CHECK_EQUAL(locate_rows(ids({3}), book, {true, true, true}, nullptr, copies).num_recent, 0);
  CHECK_THROWS(UnknownId, locate_rows(ids({num_ids}), book, {true, true, true}, nullptr, copies));
}

TEST("routing: ids whose owners are known have their rows where these are at hand, and are asked for elsewhere") {
  const int64_t size = 50000;
  const SortedIds even(ids([&] {
                         std::vector<int64_t> v(size);
                         for (int64_t i = 0; i < size; ++i) v[i] = 2 * i;
                         return v;
                       }()),
                       nullptr);
  std::vector<int64_t> asked = random_numbers(30000, 2 * size, 5);
  std::vector<int32_t> owners;
  for (int64_t id : asked) owners.push_back(id % 2 == 0 ? 1 : id % 3 == 0 ? 0 : 2);
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    const LocatedRows found = locate_owned(ids32(owners), ids(asked), {nullptr, &even, nullptr}, &pool);
    const int64_t *offsets = found.offsets.as<int64_t>(), *rows = found.rows.as<int64_t>();
    CHECK_EQUAL(offsets[1], offsets[2]);
    for (size_t i = 0; i < asked.size(); ++i) {
      if (owners[i] == 1) {
        CHECK_EQUAL(rows[i], asked[i] / 2);
      } else {
        CHECK_EQUAL(found.ids.as<int64_t>()[offsets[owners[i]] + rows[i]], asked[i]);
        CHECK_EQUAL(found.positions.as<int64_t>()[offsets[owners[i]] + rows[i]], static_cast<int64_t>(i));
      }
    }
  }
  CHECK_THROWS(UnknownId, locate_owned(ids32({1, 1}), ids({4, 7}), {nullptr, &even}, nullptr));
  CHECK_THROWS(UnknownId, locate_owned(ids32({2}), ids({4}), {nullptr, &even}, nullptr));
}

TEST("routing: every id in its owner's bucket, in the order asked, with any number of threads") {
  const int64_t num_ids = 5000;
  const std::vector<int64_t> asked = random_numbers(60000, num_ids, 4);
  for (const Book& book : books(num_ids)) {
    const Split alone = split_by_owner(ids(asked), *book, nullptr);
    const std::vector<int64_t> offsets = values<int64_t>(alone.offsets);
    for (int p = 0; p < 3; ++p)
      for (int64_t j = offsets[p]; j < offsets[p + 1]; ++j) {
        const int64_t position = alone.positions.as<int64_t>()[j];
        CHECK_EQUAL(alone.ids.as<int64_t>()[j], asked[position]);
        CHECK(j == offsets[p] || alone.positions.as<int64_t>()[j - 1] < position);
      }
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      const Split split = split_by_owner(ids(asked), *book, &pool);
      CHECK(same(split.ids, alone.ids) && same(split.rows, alone.rows));
      CHECK(same(split.positions, alone.positions) && same(split.offsets, alone.offsets));
    }
  }
}

TEST("routing: neighbors asked of three owners are those of the whole graph") {
  const int64_t num_nodes = 3000;
  ThreadPool one(1);
  const Csr whole = random_csr(num_nodes, 30000, 9, one);
  const Tensor asked = ids(random_numbers(20000, num_nodes, 10));
  const HopDraw draw{6, {}, 123, true};
  const OneHop expected = sample_neighbors(whole, {asked, {}, {}, {}}, draw, one);
  for (const Book& book : books(num_nodes))
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      const Split split = split_by_owner(asked, *book, &pool);
      std::vector<NeighborPart> parts;
      for (int p = 0; p < 3; ++p) {
        const Csr part = take_rows(whole, book->global_ids(p, &pool), pool);
        const int64_t begin = split.offsets.as<int64_t>()[p], end = split.offsets.as<int64_t>()[p + 1];
        Tensor mine = split.ids, rows = split.rows;
        mine.data = split.ids.as<int64_t>() + begin;
        rows.data = split.rows.as<int64_t>() + begin;
        mine.shape = rows.shape = {end - begin};
        const OneHop answer = sample_neighbors(part, {mine, rows, {}, {}}, draw, pool);
        parts.push_back({answer.counts, answer.neighbors, answer.edge_ids});
      }
      const Neighbors stitched = stitch_neighbors(split.positions, split.offsets, parts, &pool);
      CHECK(same(stitched.counts, expected.counts));
      CHECK(values<int32_t>(stitched.neighbors) == values<int32_t>(expected.neighbors));
      CHECK(same(stitched.edge_ids, expected.edge_ids));
      // The same read node by node, and of a lean split.
      const Split lean = split_by_owner(asked, *book, &pool, /*is_lean=*/true);
      CHECK(same(lean.rows, split.rows) && same(lean.offsets, split.offsets) && same(lean.owners, split.owners));
      CHECK(lean.ids.dtype == kInt32 && !lean.positions.defined());
      const std::vector<int32_t> lean_ids = values<int32_t>(lean.ids);
      CHECK(std::vector<int64_t>(lean_ids.begin(), lean_ids.end()) == values<int64_t>(split.ids));
      AnswerReader answers(lean, parts, draw.fanout);
      CHECK_EQUAL(answers.total(), expected.neighbors.numel());
      CHECK(answers.has_edge_ids() && answers.neighbor_dtype() == kInt32);
      std::vector<int64_t> counts, edge_ids;
      std::vector<int32_t> neighbors;
      for (int64_t i = 0; i < asked.numel(); ++i) {
        const auto [part, first, count] = answers.next();
        counts.push_back(count);
        const auto* from = answers.neighbors<int32_t>(part) + first;
        CHECK(first + count <= answers.num_neighbors(part));
        neighbors.insert(neighbors.end(), from, from + count);
        edge_ids.insert(edge_ids.end(), answers.edge_ids(part) + first, answers.edge_ids(part) + first + count);
      }
      CHECK(counts == values<int64_t>(expected.counts) && neighbors == values<int32_t>(expected.neighbors));
      CHECK(edge_ids == values<int64_t>(expected.edge_ids));
      CHECK_THROWS(InvalidArgument, AnswerReader(split, parts, draw.fanout - 1));
    }
}

TEST("routing: answers of two widths are read in the wider, and those that do not add up are refused") {
  const Book book = PartitionBook::range(ids({0, 10, 20}));
  const Split split = split_by_owner(ids({15, 3, 12}), *book, nullptr);
  const NeighborPart narrow{ids32({2}), ids32({7, 8}), {}}, wide{ids({0, 1}), ids({int64_t{1} << 40}), {}};
  AnswerReader answers(split, {narrow, wide}, -1);
  CHECK(answers.neighbor_dtype() == kInt64 && !answers.has_edge_ids());
  std::vector<int64_t> found;
  for (int i = 0; i < 3; ++i) {
    const auto [part, first, count] = answers.next();
    for (int64_t j = first; j < first + count; ++j) found.push_back(answers.neighbors<int64_t>(part)[j]);
  }
  CHECK(found == std::vector<int64_t>({7, 8, int64_t{1} << 40}));
  CHECK_THROWS(InvalidArgument, AnswerReader(split, {narrow, {ids({1, 1}), ids({1}), {}}}, -1));
  CHECK_THROWS(InvalidArgument, AnswerReader(split, {narrow, {}}, -1));
}

TEST("routing: counts that a peer sent are refused where only their wrapped sum is right") {
  ThreadPool pool(3);
  constexpr int64_t kHuge = int64_t{1} << 60;
  std::vector<int64_t> counts(17, kHuge), asked(17);
  for (int64_t i = 0; i < 17; ++i) asked[i] = i;
  counts[16] = 5;  // 16 * 2^60 + 5 is 5 in 64 bits
  const Tensor neighbors = ids({1, 2, 3, 4, 5});
  CHECK_THROWS(InvalidArgument, stitch_neighbors(ids(asked), ids({0, 17}), {{ids(counts), neighbors, {}}}, &pool));
  for (int64_t impossible : {int64_t{-1}, int64_t{6}, kHuge})
    CHECK_THROWS(InvalidArgument, stitch_neighbors(ids({0, 1}), ids({0, 2}),
                                                   {{ids({impossible, 5 - impossible}), neighbors, {}}}, &pool));
  const Neighbors fits = stitch_neighbors(ids({1, 0}), ids({0, 2}), {{ids({5, 0}), neighbors, {}}}, &pool);
  CHECK(values<int64_t>(fits.counts) == std::vector<int64_t>({0, 5}));
  CHECK(values<int64_t>(fits.neighbors) == std::vector<int64_t>({1, 2, 3, 4, 5}));
}

TEST("routing: rows are scattered to their places; what does not fit is refused") {
  ThreadPool pool(3);
  const int64_t count = 20000;
  const Tensor places = permute_indices(ids(random_numbers(0, 1, 0)), 1, 0, false, &pool);
  CHECK_EQUAL(places.numel(), 0);
  std::vector<int64_t> order(count);
  for (int64_t i = 0; i < count; ++i) order[i] = i;
  const Tensor shuffled = permute_indices(ids(order), count, 5, false, &pool);
  Tensor out = empty({count}, kInt64);
  scatter_rows(out, shuffled, ids(order), &pool);
  for (int64_t i = 0; i < count; ++i) CHECK_EQUAL(out.as<int64_t>()[shuffled.as<int64_t>()[i]], i);
  CHECK_THROWS(UnknownId, scatter_rows(out, ids({count}), ids({1}), &pool));
  const Book book = books(100)[1];
  CHECK_THROWS(UnknownId, split_by_owner(ids({5, 100}), *book, &pool));
  CHECK_THROWS(InvalidArgument, stitch_neighbors(ids({0}), ids({0, 1}), {{ids({2}), ids({1}), {}}}, &pool));
}

}  // namespace
}  // namespace gld::test

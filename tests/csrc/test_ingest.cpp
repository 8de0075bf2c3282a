// Buckets of records, and tables of ids.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "arrays.h"
#include "check.h"
#include "ingest/id_table.h"
#include "ingest/row_buckets.h"

namespace gld::test {
namespace {

// A folder that is removed with its files, which are numbered.
struct Folder {
  std::string path = "/tmp/gld-ingest-XXXXXX";
  Folder() {
    if (::mkdtemp(path.data()) == nullptr) throw Failure("no folder can be made in /tmp");
  }
  ~Folder() {
    for (int i = 0; i < 64; ++i) ::unlink((path + "/" + std::to_string(i)).c_str());
    ::rmdir(path.c_str());
  }
};

IdColumn texts(const std::vector<std::string>& strings) {
  std::vector<int64_t> offsets{0};
  std::vector<uint8_t> bytes;
  for (const std::string& text : strings) {
    bytes.insert(bytes.end(), text.begin(), text.end());
    offsets.push_back(static_cast<int64_t>(bytes.size()));
  }
  IdColumn column;
  column.offsets = ids(offsets);
  column.bytes = tensor(bytes, kUInt8);
  return column;
}

IdColumn integers(const std::vector<int64_t>& values) {
  IdColumn column;
  column.ids = ids(values);
  return column;
}

TEST("ingest: every record is in the bucket of its row, in the order in which they came") {
  const int64_t num_ids = 100, count = 5000;
  for (const auto& book : {PartitionBook::permuted(num_ids, 3, 5), PartitionBook::range(ids({0, 7, 7, num_ids}))}) {
    for (const int64_t buffer : {1, 40, 1 << 16}) {
      const Folder folder;
      ThreadPool pool(2);
      const std::vector<int64_t> nodes = random_numbers(count, num_ids, 3);
      RowBuckets buckets(book, folder.path, 3, {8, 2, 3}, buffer);
      CHECK_EQUAL(buckets.record_bytes(), 17);
      std::vector<std::string> expected(buckets.num_buckets());
      for (int64_t first = 0; first < count; first += 1234) {
        const int64_t last = std::min(first + 1234, count), size = last - first;
        std::vector<int64_t> wide(size);
        std::vector<int16_t> narrow(size);
        std::vector<uint8_t> odd(3 * size);
        for (int64_t i = 0; i < size; ++i) {
          wide[i] = first + i;
          narrow[i] = static_cast<int16_t>(7 * i);
          for (int64_t b = 0; b < 3; ++b) odd[3 * i + b] = static_cast<uint8_t>(i + b);
        }
        const std::vector<int64_t> part(nodes.begin() + first, nodes.begin() + last);
        std::vector<int32_t> owners(size);
        std::vector<int64_t> rows(size);
        book->locate(ids(part), owners.data(), rows.data(), nullptr);
        for (int64_t i = 0; i < size; ++i) {
          std::string& bucket = expected[buckets.first_bucket(owners[i]) + rows[i] / 8];
          const auto row = static_cast<uint32_t>(rows[i] % 8);
          bucket.append(reinterpret_cast<const char*>(&row), 4);
          bucket.append(reinterpret_cast<const char*>(&wide[i]), 8);
          bucket.append(reinterpret_cast<const char*>(&narrow[i]), 2);
          bucket.append(reinterpret_cast<const char*>(&odd[3 * i]), 3);
        }
        buckets.put(ids(part), {ids(wide), tensor(narrow, DType{Kind::kInt, 16}), tensor(odd, kUInt8)}, &pool);
      }
      buckets.flush();
      for (int64_t b = 0; b < buckets.num_buckets(); ++b) {
        std::ifstream file(folder.path + "/" + std::to_string(b), std::ios::binary);
        const std::string found{std::istreambuf_iterator<char>(file), {}};
        CHECK(found == expected[b]);
        CHECK_EQUAL(buckets.counts()[b] * buckets.record_bytes(), static_cast<int64_t>(found.size()));
      }
    }
  }
}

TEST("ingest: an id outside the book, columns that do not fit and a folder that is not there are errors") {
  const Folder folder;
  RowBuckets buckets(PartitionBook::permuted(10, 2, 1), folder.path, 2, {8}, 64);
  CHECK_THROWS(UnknownId, buckets.put(ids({3, 10}), {ids({1, 2})}, nullptr));
  CHECK_THROWS(InvalidArgument, buckets.put(ids({3, 4}), {ids({1})}, nullptr));
  CHECK_THROWS(InvalidArgument, buckets.put(ids({3, 4}), {}, nullptr));
  for (const int64_t count : buckets.counts()) CHECK_EQUAL(count, 0);
  RowBuckets nowhere(PartitionBook::permuted(10, 2, 1), folder.path + "/none", 2, {8}, 64);
  nowhere.put(ids({3}), {ids({1})}, nullptr);
  CHECK_THROWS(std::system_error, nowhere.flush());
}

TEST("ingest: a table finds the ids that a list has, and no others") {
  for (const int64_t size : {0, 1, 15, 16, 1000, 100000}) {
    std::vector<int64_t> known;
    std::vector<std::string> names;
    for (int64_t i = 0; i < size; ++i) {
      known.push_back((i * 7919 - 3000) * 1000003);
      names.push_back(std::string(i % 23 == 22 ? 300 - i % 90 : i % 23, 'x') + std::to_string(i));
    }
    std::vector<int64_t> asked = known, expected(size);
    std::vector<std::string> asked_names = names;
    for (int64_t i = 0; i < size; ++i) expected[i] = i;
    for (int64_t i = 0; i < 40; ++i) {
      asked.push_back(i + 1);
      asked_names.push_back(i == 0 ? std::string() : std::string(i, 'y'));
      expected.push_back(-1);
    }
    ThreadPool pool(2);
    CHECK(values<int64_t>(IdTable(integers(known)).find(integers(asked), &pool)) == expected);
    CHECK(values<int64_t>(IdTable(texts(names)).find(texts(asked_names), nullptr)) == expected);
    CHECK_THROWS(InvalidArgument, IdTable(texts(names)).find(integers(asked), nullptr));

    // Made piece by piece, with more room than is needed.
    int64_t text_bytes = 0;
    for (const std::string& name : names) text_bytes += static_cast<int64_t>(name.size());
    IdTable numbers(size + 3, -1), strings(size, text_bytes);
    for (int64_t first = 0; first < size; first += 30011) {
      const int64_t last = std::min(first + 30011, size);
      numbers.add(integers({known.begin() + first, known.begin() + last}));
      strings.add(texts({names.begin() + first, names.begin() + last}));
    }
    CHECK_EQUAL(numbers.size(), size);
    CHECK(values<int64_t>(numbers.find(integers(asked), &pool)) == expected);
    CHECK(values<int64_t>(strings.find(texts(asked_names), &pool)) == expected);
    CHECK_THROWS(InvalidArgument, numbers.add(integers({1, 2, 3, 4})));
    CHECK_THROWS(InvalidArgument, strings.add(texts({"y"})));
    CHECK_THROWS(InvalidArgument, numbers.add(texts({"y"})));
  }
  IdTable narrow(2, 3);
  CHECK_THROWS(InvalidArgument, narrow.add(texts({"ab", "cd"})));
  narrow.add(texts({"", "cde"}));
  CHECK(values<int64_t>(narrow.find(texts({"cd", "cde", ""}), nullptr)) == (std::vector<int64_t>{-1, 1, 0}));
  IdColumn damaged = texts({"a", "b"});
  damaged.offsets = ids({0, 3, 2});
  CHECK_THROWS(InvalidArgument, IdTable{damaged});
}

}  // namespace
}  // namespace gld::test

// Pages of a mapped graph are asked for ahead of a hop: when, which, and that picks stay the same.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "arrays.h"
#include "check.h"
#include "graph/page_watch.h"
#include "sampling/batch_builder.h"
#include "sampling/neighbor_sampler.h"

namespace gld::test {
namespace {

// A tensor's values in a file that nobody else has, mapped, and not in memory where the system goes along.
class MappedFile {
 public:
  explicit MappedFile(const Tensor& values) : bytes_(values.nbytes()) {
    std::string path = "/var/tmp/gld-page-watch-XXXXXX";  // /tmp may be memory
    file_ = mkstemp(path.data());
    unlink(path.c_str());
    CHECK_EQUAL(write(file_, values.data, bytes_), static_cast<ssize_t>(bytes_));
    fsync(file_);
    posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
    mapped_ = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file_, 0);
    tensor = values;
    tensor.data = mapped_;
  }
  ~MappedFile() {
    munmap(mapped_, bytes_);
    close(file_);
  }
  bool has_page(int64_t number) const {
    unsigned char resident = 0;
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    CHECK_EQUAL(mincore(static_cast<char*>(mapped_) + static_cast<size_t>(number) * page, 1, &resident), 0);
    return (resident & 1) != 0;
  }

  Tensor tensor;

 private:
  size_t bytes_;
  int file_;
  void* mapped_;
};

TEST("pages: asked for where hops wait, and looked at again now and then") {
  PageWatch watch;
  CHECK(!watch.begins_hop());
  watch.ends_hop(false, 1000, 15);  // a page for each 66 rows
  CHECK(!watch.begins_hop());
  watch.ends_hop(false, 1000, 16);
  int ahead = 0;
  for (int hop = 0; hop < 128; ++hop) {
    const bool is_ahead = watch.begins_hop();
    ahead += is_ahead;
    watch.ends_hop(is_ahead, 1000, is_ahead ? 0 : 900);
  }
  CHECK_EQUAL(ahead, 126);
  while (watch.begins_hop()) continue;
  watch.ends_hop(false, 1000, 0);  // it is all in memory by now
  CHECK(!watch.begins_hop());
}

TEST("pages: those of a row are read without being touched") {
  const int64_t per_page = sysconf(_SC_PAGESIZE) / 8, count = 64 * per_page;
  const MappedFile file(ids(random_numbers(count, 10, 1)));
  Csr csr;
  csr.indices = file.tensor;
  if (file.has_page(40)) return;  // a file system that keeps everything
  PagesAhead pages;
  for (const int64_t page : {40, 10, 12, 50, 11}) pages.add(csr, page * per_page + 3, 5, true);
  pages.add(csr, 0, count, true);  // too long
  CHECK(!file.has_page(10));
  pages.ask();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const int64_t page : {10, 11, 12, 40, 50}) {
    while (!file.has_page(page) && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    CHECK(file.has_page(page));
  }
  CHECK(!file.has_page(60));
}

TEST("pages: picks are the same, in one piece, in several and a hop at a time") {
  ThreadPool pool(2);
  const Csr csr = random_csr(3000, 60000, 5, pool);
  const MappedFile indices(csr.indices), edge_ids(csr.edge_ids);
  Csr mapped = csr;
  mapped.indices = indices.tensor;
  mapped.edge_ids = edge_ids.tensor;
  mapped.watch = std::make_shared<PageWatch>();
  mapped.watch->ends_hop(false, 1, 1);
  const Tensor seeds = ids(random_numbers(500, 3000, 9));
  const HopDraw draw{4, {}, 77, true};
  const OneHop one = sample_neighbors(csr, {seeds, {}, {}, {}}, draw, pool);
  const OneHop other = sample_neighbors(mapped, {seeds, {}, {}, {}}, draw, pool);
  CHECK(same(one.neighbors, other.neighbors) && same(one.edge_ids, other.edge_ids) && same(one.counts, other.counts));
  SampledSubgraph found[2];
  for (int i = 0; i < 2; ++i) {
    BatchBuilder builder({3000}, {{0, 0}});
    builder.begin(500, -1, false, true);
    builder.add_seeds(0, seeds, {}, true);
    for (int hop = 0; hop < 2; ++hop) {
      builder.sample_hop(0, i == 0 ? csr : mapped, {4, {}, static_cast<uint64_t>(hop), true}, pool);
      builder.next_hop();
    }
    found[i] = builder.finish();
  }
  CHECK(same(found[0].rows[0], found[1].rows[0]) && same(found[0].cols[0], found[1].cols[0]));
  CHECK(same(found[0].nodes[0], found[1].nodes[0]) && same(found[0].edge_ids[0], found[1].edge_ids[0]));
}

}  // namespace
}  // namespace gld::test

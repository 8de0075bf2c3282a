#include "graph/page_watch.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "graph/csr.h"

namespace gld {
namespace {

constexpr int64_t kRowsAFault = 64;  // fewer rows for each fault, and asking costs less than waiting
constexpr uint32_t kLookEvery = 64;  // hops
constexpr uintptr_t kMostBytes = 16 << 10;
constexpr size_t kMostRows = 64 << 10;  // that are put in order at a time

uintptr_t page_bytes() {
  static const uintptr_t bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

void read_at_random(const Tensor& array) {
  if (!array.defined() || array.numel() == 0) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(array.data) / page_bytes() * page_bytes();
  const uintptr_t end = reinterpret_cast<uintptr_t>(array.data) + array.nbytes();
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_RANDOM);
}

bool PageWatch::begins_hop() {
  if (!is_ahead_.load(std::memory_order_relaxed)) return false;
  return turn_.fetch_add(1, std::memory_order_relaxed) % kLookEvery != kLookEvery - 1;
}

void PageWatch::ends_hop(bool ahead, int64_t num_rows, int64_t num_faults) {
  if (!ahead && num_rows > 0) is_ahead_.store(num_faults * kRowsAFault > num_rows, std::memory_order_relaxed);
}

bool asks_ahead(const Csr& csr) {
  if (csr.watch == nullptr || !csr.watch->begins_hop()) return false;
  if (csr.watch->first_ahead())
    for (const Tensor* array : {&csr.indices, &csr.edge_ids, &csr.times, &csr.weights, &csr.weight_sums})
      read_at_random(*array);
  return true;
}

void PagesAhead::add(const Tensor& array, int64_t first, int64_t count) {
  const auto item = static_cast<uintptr_t>(array.dtype.size());
  const uintptr_t begin = reinterpret_cast<uintptr_t>(array.data) + static_cast<uintptr_t>(first) * item;
  const uintptr_t bytes = static_cast<uintptr_t>(count) * item;
  if (bytes == 0 || bytes > kMostBytes) return;
  pages_.push_back({begin / page_bytes(), (begin + bytes - 1) / page_bytes()});
}

void PagesAhead::add(const Csr& csr, int64_t first_edge, int64_t num_edges, bool with_edge_ids) {
  add(csr.indices, first_edge, num_edges);
  if (with_edge_ids && csr.edge_ids.defined()) add(csr.edge_ids, first_edge, num_edges);
  if (pages_.size() >= kMostRows) ask();
}

void PagesAhead::ask() {
  std::sort(pages_.begin(), pages_.end(), [](const Pages& one, const Pages& other) { return one.first < other.first; });
  for (size_t begin = 0, end; begin < pages_.size(); begin = end) {
    const uintptr_t first = pages_[begin].first;
    uintptr_t last = pages_[begin].last;
    for (end = begin + 1; end < pages_.size() && pages_[end].first <= last + 1; ++end)
      last = std::max(last, pages_[end].last);
    // It may fail, for memory that no file has: then there is nothing to be read.
    (void)madvise(reinterpret_cast<void*>(first * page_bytes()), (last - first + 1) * page_bytes(), MADV_WILLNEED);
  }
  pages_.clear();
}

int64_t pages_waited_for() {
  rusage used{};
  getrusage(RUSAGE_THREAD, &used);
  return used.ru_majflt;
}

}  // namespace gld

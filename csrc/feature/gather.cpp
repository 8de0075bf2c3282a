#include "feature/gather.h"

#include <algorithm>
#include <cstring>

namespace gld {
namespace {

constexpr int64_t kGatherGrain = 1024;
constexpr size_t kCacheLine = 64;
// Bytes of rows under way to the cache: enough to cover memory latency, well below the first-level cache.
constexpr size_t kPrefetchBytes = 8192;
constexpr size_t kPrefetchedPerRow = 512;  // beyond this the hardware prefetcher follows by itself

template <typename Row>
struct GatherKernel {
  const RowStore& store;
  const Row* rows;
  const int64_t* positions;
  char* out;
  int64_t num_out;

  const char* source(int64_t row) const {
    size_t part = 0;
    if (store.parts.size() > 1)
      part = std::upper_bound(store.bounds.begin(), store.bounds.end(), row) - store.bounds.begin() - 1;
    return static_cast<const char*>(store.parts[part].data) + (row - store.bounds[part]) * store.row_bytes;
  }

  bool valid(int64_t row) const { return row >= 0 && row < store.num_rows(); }

  void prefetch(int64_t row) const {
    if (!valid(row)) return;
    const char* address = source(row);
    for (size_t offset = 0; offset < std::min(store.row_bytes, kPrefetchedPerRow); offset += kCacheLine)
      __builtin_prefetch(address + offset);
  }

  void run(int64_t begin, int64_t end) const {
    const size_t width = store.row_bytes;
    const int64_t ahead = std::clamp<int64_t>(kPrefetchBytes / std::max<size_t>(width, 1), 2, 32);
    for (int64_t i = begin; i < end; ++i) {
      if (i + ahead < end) prefetch(rows[i + ahead]);
      if (!valid(rows[i]))
        throw UnknownId(message("row ", static_cast<int64_t>(rows[i]), " is outside [0, ", store.num_rows(), ")"));
      const int64_t target = positions != nullptr ? positions[i] : i;
      if (target < 0 || target >= num_out)
        throw InvalidArgument(message("positions[", i, "]: ", target, " is outside [0, ", num_out, ")"));
      std::memcpy(out + target * width, source(rows[i]), width);
    }
  }
};

std::vector<int64_t> with_rows(std::vector<int64_t> shape, int64_t rows) {
  shape[0] = rows;
  return shape;
}

}  // namespace

RowStore make_row_store(std::vector<Tensor> parts) {
  if (parts.empty()) throw InvalidArgument("tensors: expected at least one, got none");
  RowStore store;
  store.bounds.push_back(0);
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor& part = parts[i];
    if (part.shape.empty()) throw InvalidArgument(message("tensors[", i, "]: expected rows, got a scalar"));
    if (part.dtype != parts[0].dtype || with_rows(part.shape, 0) != with_rows(parts[0].shape, 0))
      throw InvalidArgument(message("tensors[", i, "]: dtype and row shape differ from those of tensors[0]"));
    store.bounds.push_back(store.bounds.back() + part.shape[0]);
  }
  store.row_bytes = parts[0].dtype.size();
  for (size_t d = 1; d < parts[0].shape.size(); ++d) store.row_bytes *= parts[0].shape[d];
  store.parts = std::move(parts);
  return store;
}

Tensor gather_rows(const RowStore& store, const Tensor& rows, const Tensor& positions, Tensor out, ThreadPool& pool) {
  check_index_vector(rows, "rows");
  const int64_t count = rows.shape[0];
  if (positions.defined()) {
    check_index_vector(positions, "positions");
    if (positions.dtype != kInt64 || positions.shape != rows.shape)
      throw InvalidArgument(message("positions: expected int64 [", count, "]"));
  }
  const Tensor& first = store.parts[0];
  if (!out.defined()) {
    out = empty(with_rows(first.shape, count), first.dtype);
  } else if (out.shape.empty() || out.dtype != first.dtype || with_rows(out.shape, 0) != with_rows(first.shape, 0)) {
    throw InvalidArgument("out: expected the dtype and row shape of the store");
  }
  dispatch_index(rows.dtype, "rows", [&](auto tag) {
    using Row = decltype(tag);
    const GatherKernel<Row> kernel{store, rows.as<Row>(), positions.defined() ? positions.as<int64_t>() : nullptr,
                                   static_cast<char*>(out.data), out.shape[0]};
    pool.parallel_for(count, kGatherGrain, [&](int64_t begin, int64_t end) { kernel.run(begin, end); });
  });
  return out;
}

}  // namespace gld

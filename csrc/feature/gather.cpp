#include "feature/gather.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "feature/cast_rows.h"
#include "feature/copy_rows.h"

namespace gld {
namespace {

constexpr int64_t kGatherGrain = 1024;
constexpr int64_t kChunk = 256;     // rows whose addresses are worked out before they are copied
constexpr int64_t kChecked = 4096;  // rows that are checked before they are copied

template <typename Row>
bool rows_are_valid(const Row* rows, int64_t count, int64_t num_rows) {
  bool is_bad = false;
  for (int64_t i = 0; i < count; ++i) is_bad |= static_cast<uint64_t>(rows[i]) >= static_cast<uint64_t>(num_rows);
  return !is_bad;
}

[[noreturn]] void refuse_row(int64_t row, int64_t num_rows) {
  throw UnknownId(message("row ", row, " is outside [0, ", num_rows, ")"));
}

// The rows of one store that are wanted.
template <typename Row>
struct StoreSource {
  const RowStore& store;
  const Row* rows;

  void refuse(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i)
      if (rows[i] < 0 || rows[i] >= store.num_rows()) refuse_row(rows[i], store.num_rows());
  }

  // Where rows[begin, end) lie, into from[0 ...].
  void find(int64_t begin, int64_t end, const char** from) const {
    const char* only = static_cast<const char*>(store.parts[0].data);
    if (!row_addresses(rows + begin, end - begin, only, store.num_rows(), store.row_bytes, from)) refuse(begin, end);
    if (store.parts.size() == 1) return;
    for (int64_t i = begin; i < end; ++i) from[i - begin] = store.address(rows[i]);
  }
};

// Rows of several stores, some of which may be null: nobody has rows there.
class LocatedSource {
 public:
  LocatedSource(const std::vector<const RowStore*>& stores, const RowStore& any, const int32_t* owners,
                const int64_t* rows)
      : store(any), stores_(stores), owners_(owners), rows_(rows) {
    for (const RowStore* of_owner : stores) {
      firsts_.push_back(of_owner == nullptr ? nullptr : static_cast<const char*>(of_owner->parts[0].data));
      num_rows_.push_back(of_owner == nullptr ? 0 : of_owner->num_rows());
      in_parts_ |= of_owner != nullptr && of_owner->parts.size() > 1;
    }
  }

  void find(int64_t begin, int64_t end, const char** from) const {
    const size_t width = store.row_bytes;
    bool is_bad = false;
    for (int64_t i = begin; i < end; ++i) {
      const auto owner = static_cast<uint32_t>(owners_[i]);
      if (owner >= stores_.size()) refuse(i);
      is_bad |= static_cast<uint64_t>(rows_[i]) >= static_cast<uint64_t>(num_rows_[owner]);
      from[i - begin] = firsts_[owner] + rows_[i] * width;
    }
    for (int64_t i = begin; is_bad && i < end; ++i)
      if (rows_[i] < 0 || rows_[i] >= num_rows_[owners_[i]]) refuse(i);
    if (!in_parts_) return;
    for (int64_t i = begin; i < end; ++i) from[i - begin] = stores_[owners_[i]]->address(rows_[i]);
  }

  const RowStore& store;  // any of them

 private:
  [[noreturn]] void refuse(int64_t i) const {
    if (static_cast<uint32_t>(owners_[i]) >= stores_.size() || stores_[owners_[i]] == nullptr)
      throw InvalidArgument(message("owners[", i, "]: there is no store of owner ", owners_[i]));
    refuse_row(rows_[i], num_rows_[owners_[i]]);
  }

  const std::vector<const RowStore*>& stores_;
  const int32_t* owners_;
  const int64_t* rows_;
  std::vector<const char*> firsts_;  // by owner, its first row
  std::vector<int64_t> num_rows_;    // by owner
  bool in_parts_ = false;            // whether the rows of some owner do not lie in one piece
};

// `Source` is one of the two above.
template <typename Source>
struct GatherKernel {
  Source source;
  const int64_t* positions;  // null: the i-th row goes to place i
  char* out;
  int64_t num_out;
  DType dtype;
  size_t out_width;  // bytes of a row of the output
  bool streaming;

  void refuse_target(int64_t i, int64_t place) const {
    throw InvalidArgument(message("positions[", i, "]: ", place, " is outside [0, ", num_out, ")"));
  }

  // Where the i-th row of [begin, end) goes, into to[0 ...].
  void find_targets(int64_t begin, int64_t end, char** to) const {
    if (positions == nullptr && end <= num_out)
      return consecutive_addresses(end - begin, out + begin * out_width, out_width, to);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t place = positions != nullptr ? positions[i] : i;
      if (place < 0 || place >= num_out) refuse_target(i, place);
      *to++ = out + place * out_width;
    }
  }

  void copy(const char* const* from, char* const* to, int64_t count, int64_t ahead) const {
    const RowStore& store = source.store;
    if (dtype == store.dtype()) return copy_rows(from, to, count, ahead, store.row_bytes, streaming);
    cast_rows(from, to, count, ahead, store.row_bytes / store.dtype().size(), store.dtype(), dtype);
  }

  bool is_direct() const {
    const RowStore& store = source.store;
    return positions == nullptr && dtype == store.dtype() && store.parts.size() == 1 && is_narrow(store.row_bytes);
  }

  // Checks rows a stretch ahead of those it copies, and prefetches within what it has checked.
  void run_direct(int64_t begin, int64_t end) const {
    if (end > num_out) refuse_target(num_out, num_out);
    const RowStore& store = source.store;
    const auto* rows = source.rows;
    const char* first = static_cast<const char*>(store.parts[0].data);
    const int64_t ahead = std::min(rows_ahead(store.row_bytes), end - begin), last = end - ahead;
    for (int64_t chunk = begin; chunk < end; chunk += kChecked) {
      if (!rows_are_valid(rows + chunk, std::min(kChecked + ahead, end - chunk), store.num_rows()))
        source.refuse(chunk, end);
      const int64_t stop = std::min(chunk + kChecked, end), with_ahead = std::clamp(last, chunk, stop);
      char* to = out + chunk * out_width;
      copy_narrow_rows(rows + chunk, with_ahead - chunk, ahead, first, out_width, to);
      copy_narrow_rows(rows + with_ahead, stop - with_ahead, 0, first, out_width,
                       to + (with_ahead - chunk) * out_width);
    }
  }

  void run(int64_t begin, int64_t end) const {
    if constexpr (!std::is_same_v<Source, LocatedSource>)
      if (is_direct()) return run_direct(begin, end);
    // from[0, ahead) of each chunk were worked out with the chunk before, which prefetched them.
    const char* from[kChunk + kMaxRowsAhead];
    char* to[kChunk];
    const size_t width = source.store.row_bytes;
    const int64_t ahead = std::min(rows_ahead(width), end - begin);
    source.find(begin, begin + ahead, from);
    for (int64_t i = 0; i < ahead; ++i) prefetch_row(from[i], width);
    for (int64_t chunk = begin; chunk < end; chunk += kChunk) {
      const int64_t count = std::min(kChunk, end - chunk), known = std::min(chunk + count + ahead, end);
      source.find(std::min(chunk + ahead, end), known, from + ahead);
      // Behind the last row, that row again: prefetching needs no condition then.
      for (int64_t i = known - chunk; i < count + ahead; ++i) from[i] = from[i - 1];
      find_targets(chunk, chunk + count, to);
      copy(from, to, count, ahead);
      std::copy(from + count, from + count + ahead, from);
    }
  }
};

std::vector<int64_t> with_rows(std::vector<int64_t> shape, int64_t rows) {
  shape[0] = rows;
  return shape;
}

void check_cast(DType from, DType to) {
  if (to != from && !can_cast(from, to))
    throw InvalidArgument(
        message("dtype: rows of ", to_string(from), " cannot be cast to ", to_string(to), " on the way"));
}

void check_out(const RowStore& store, const Tensor& out, DType dtype) {
  if (out.shape.empty() || out.dtype != dtype || with_rows(out.shape, 0) != with_rows(store.parts[0].shape, 0))
    throw InvalidArgument(message("out: expected rows of ", to_string(dtype), " in the shape of the store's, got ",
                                  to_string(out.dtype), " or another shape"));
}

// Runs the kernel over `count` rows, whose places in `out` are `positions`, or their order where that is null.
template <typename Source>
void run_gather(const Source& source, int64_t count, const int64_t* positions, const Tensor& out, ThreadPool& pool) {
  const DType from = source.store.dtype();
  char* target = static_cast<char*>(out.data);
  const size_t out_width = source.store.row_bytes / from.size() * out.dtype.size();
  const bool streaming = out.dtype == from && can_stream(target, count, out_width, positions == nullptr);
  const GatherKernel<Source> kernel{source, positions, target, out.shape[0], out.dtype, out_width, streaming};
  pool.parallel_for(count, kGatherGrain, [&](int64_t begin, int64_t end) { kernel.run(begin, end); });
}

// Rows on a disk that are kept in memory while they are gathered.
class PinnedRows {
 public:
  PinnedRows(const RowStore& store, std::vector<int64_t> rows) : disk_(*store.disk), slots_(std::move(rows)) {
    disk_.pin(slots_.data(), static_cast<int64_t>(slots_.size()), slots_.data());
    memory_.parts = {store.parts[0]};
    memory_.parts[0].data = disk_.memory();
    memory_.bounds = {0, disk_.num_slots()};
    memory_.row_bytes = store.row_bytes;
  }
  ~PinnedRows() { disk_.unpin(slots_.data(), static_cast<int64_t>(slots_.size())); }
  PinnedRows(const PinnedRows&) = delete;
  PinnedRows& operator=(const PinnedRows&) = delete;

  const RowStore& memory() const { return memory_; }
  const std::vector<int64_t>& slots() const { return slots_; }  // where each row lies in it

 private:
  DiskRows& disk_;
  std::vector<int64_t> slots_;
  RowStore memory_;
};

// What is left of a tensor behind its first rows, which is a row at least.
Tensor behind(Tensor tensor, int64_t rows) {
  tensor.data = tensor.as<char>() + static_cast<int64_t>(tensor.nbytes()) / tensor.shape[0] * rows;
  tensor.shape[0] -= rows;
  return tensor;
}

template <typename Row>
void gather_from_disk(const RowStore& store, const Row* rows, int64_t count, const int64_t* positions,
                      const Tensor& out, ThreadPool& pool) {
  if (positions == nullptr && count > out.shape[0])
    throw InvalidArgument(message("out: expected at least ", count, " rows, got ", out.shape[0]));
  const int64_t most = store.disk->max_pinned();
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t end = std::min(begin + most, count);
    const PinnedRows pinned(store, std::vector<int64_t>(rows + begin, rows + end));
    const StoreSource<int64_t> source{pinned.memory(), pinned.slots().data()};
    if (positions != nullptr)
      run_gather(source, end - begin, positions + begin, out, pool);
    else
      run_gather(source, end - begin, nullptr, behind(out, begin), pool);
  }
}

// As gather_located() where some of the stores are on a disk.
void gather_located_from_disk(std::vector<const RowStore*> stores, const int32_t* owners, const int64_t* rows,
                              int64_t count, const Tensor& out, ThreadPool& pool) {
  if (count > out.shape[0])
    throw InvalidArgument(message("out: expected at least ", count, " rows, got ", out.shape[0]));
  int64_t most = count;
  for (const RowStore* store : stores)
    if (store != nullptr && store->disk != nullptr) most = std::min(most, store->disk->max_pinned());
  const std::vector<const RowStore*> given = stores;
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t end = std::min(begin + most, count);
    std::vector<int64_t> found(rows + begin, rows + end);
    std::vector<std::unique_ptr<PinnedRows>> pinned;
    for (size_t owner = 0; owner < given.size(); ++owner) {
      if (given[owner] == nullptr || given[owner]->disk == nullptr) continue;
      std::vector<int64_t> wanted;
      for (int64_t i = begin; i < end; ++i)
        if (owners[i] == static_cast<int32_t>(owner)) wanted.push_back(rows[i]);
      pinned.push_back(std::make_unique<PinnedRows>(*given[owner], std::move(wanted)));
      stores[owner] = &pinned.back()->memory();
      const int64_t* slot = pinned.back()->slots().data();
      for (int64_t i = begin; i < end; ++i)
        if (owners[i] == static_cast<int32_t>(owner)) found[static_cast<size_t>(i - begin)] = *slot++;
    }
    const LocatedSource source(stores, pinned.front()->memory(), owners + begin, found.data());
    run_gather(source, end - begin, nullptr, behind(out, begin), pool);
  }
}

}  // namespace

const char* RowStore::address(int64_t row) const {
  size_t part = 0;
  if (parts.size() > 1) part = std::upper_bound(bounds.begin(), bounds.end(), row) - bounds.begin() - 1;
  return static_cast<const char*>(parts[part].data) + (row - bounds[part]) * row_bytes;
}

RowStore make_row_store(std::vector<Tensor> parts, std::shared_ptr<DiskRows> disk) {
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
  if (disk != nullptr && (store.parts.size() != 1 || store.num_rows() != disk->num_rows()))
    throw InvalidArgument(message("disk: expected one piece of ", disk->num_rows(), " rows, got ", store.num_rows()));
  store.disk = std::move(disk);
  return store;
}

void check_rows(const RowStore& store, const Tensor& rows) {
  const auto* const at = rows.as<int64_t>();
  for (int64_t begin = 0; begin < rows.numel(); begin += kChecked) {
    const int64_t count = std::min(kChecked, rows.numel() - begin);
    if (rows_are_valid(at + begin, count, store.num_rows())) continue;
    StoreSource<int64_t>{store, at}.refuse(begin, begin + count);
  }
}

void check_gathered(const RowStore& store, const Tensor& out) {
  check_cast(store.dtype(), out.dtype);
  check_out(store, out, out.dtype);
}

Tensor gather_rows(const RowStore& store, const Tensor& rows, const Tensor& positions, Tensor out, ThreadPool& pool,
                   std::optional<DType> wanted) {
  check_index_vector(rows, "rows");
  const int64_t count = rows.shape[0];
  if (positions.defined()) {
    check_index_vector(positions, "positions");
    if (positions.dtype != kInt64 || positions.shape != rows.shape)
      throw InvalidArgument(message("positions: expected int64 [", count, "]"));
  }
  const DType dtype = wanted.value_or(store.dtype());
  check_cast(store.dtype(), dtype);
  if (out.defined())
    check_out(store, out, dtype);
  else
    out = empty(with_rows(store.parts[0].shape, count), dtype);
  const int64_t* const places = positions.defined() ? positions.as<int64_t>() : nullptr;
  dispatch_index(rows.dtype, "rows", [&](auto tag) {
    const auto* const wanted_rows = rows.as<decltype(tag)>();
    if (store.disk != nullptr) return gather_from_disk(store, wanted_rows, count, places, out, pool);
    run_gather(StoreSource<decltype(tag)>{store, wanted_rows}, count, places, out, pool);
  });
  return out;
}

void gather_located(const std::vector<const RowStore*>& stores, const Tensor& owners, const Tensor& rows,
                    const Tensor& out, ThreadPool& pool) {
  check_index_vector(owners, "owners");
  check_index_vector(rows, "rows");
  if (owners.dtype != kInt32 || rows.dtype != kInt64 || owners.shape != rows.shape)
    throw InvalidArgument("owners, rows: expected int32 [n] and int64 [n], as a partition book locates ids");
  const auto found = std::find_if(stores.begin(), stores.end(), [](const RowStore* store) { return store != nullptr; });
  if (found == stores.end()) throw InvalidArgument("stores: expected at least one, got none");
  const RowStore& any = **found;
  for (const RowStore* store : stores)
    if (store != nullptr &&
        (store->dtype() != any.dtype() || with_rows(store->parts[0].shape, 0) != with_rows(any.parts[0].shape, 0)))
      throw InvalidArgument("stores: expected one dtype and one row shape in all of them");
  check_gathered(any, out);
  const auto* const of = owners.as<int32_t>();
  const auto* const wanted = rows.as<int64_t>();
  const auto is_on_disk = [](const RowStore* store) { return store != nullptr && store->disk != nullptr; };
  if (std::any_of(stores.begin(), stores.end(), is_on_disk))
    return gather_located_from_disk(stores, of, wanted, rows.shape[0], out, pool);
  run_gather(LocatedSource(stores, any, of, wanted), rows.shape[0], nullptr, out, pool);
}

}  // namespace gld

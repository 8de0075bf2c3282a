#include "routing/partition_book.h"

#include <algorithm>
#include <numeric>

#include "common/simd.h"

namespace gld {
namespace {

constexpr int64_t kGrain = 4096;
constexpr int kMaxPartitions = 1 << 20;
constexpr size_t kLinearSearch = 32;  // up to so many partitions, comparing with every bound vectorises and wins

template <typename T>
GLD_INLINE bool copy_within(const T* ids, int64_t count, int64_t limit, int64_t* out) {
  const auto last = static_cast<uint64_t>(limit - 1);
  uint64_t signs = 0;  // of ids, and of their distances to the last
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<int64_t>(ids[i]);
    signs |= static_cast<uint64_t>(out[i]) | (last - static_cast<uint64_t>(out[i]));
  }
  return static_cast<int64_t>(signs) >= 0;
}

// Copies to int64; false if some id lies outside [0, limit).
GLD_SIMD bool widen(const int32_t* ids, int64_t count, int64_t limit, int64_t* out) {
  return copy_within(ids, count, limit, out);
}
GLD_SIMD bool widen(const int64_t* ids, int64_t count, int64_t limit, int64_t* out) {
  return copy_within(ids, count, limit, out);
}

[[noreturn]] void throw_unknown(const char* name, const int64_t* ids, int64_t count, int64_t limit, int64_t position) {
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= limit)
      throw UnknownId(message(name, "[", position + i, "]=", ids[i], ": no such id; expected 0 <= id < ", limit));
  throw UnknownId(message(name, ": unknown id"));
}

GLD_SIMD void find_ranges(const int64_t* bounds, size_t num_ranges, const int64_t* places, int64_t count,
                          int32_t* owners, int64_t* rows) {
  for (int64_t i = 0; i < count; ++i) owners[i] = 0;
  for (int64_t i = 0; i < count; ++i) rows[i] = places[i];
  for (size_t k = 1; k < num_ranges; ++k) {
    const int64_t bound = bounds[k];
    for (int64_t i = 0; i < count; ++i) owners[i] += places[i] >= bound;
    for (int64_t i = 0; i < count; ++i) rows[i] = places[i] >= bound ? places[i] - bound : rows[i];
  }
}

// The range [offsets[k], offsets[k + 1]) that a place lies in: the last whose begin is not above it.
inline size_t search_range(const std::vector<int64_t>& offsets, int64_t place) {
  const int64_t* base = offsets.data();
  for (size_t length = offsets.size() - 1; length > 1;) {
    const size_t half = length / 2;
    base += base[half] <= place ? half : 0;
    length -= half;
  }
  return static_cast<size_t>(base - offsets.data());
}

// Owner and row of each place among the ranges [offsets[p], offsets[p + 1]).
void locate_in_ranges(const std::vector<int64_t>& offsets, const int64_t* places, int64_t count, int32_t* owners,
                      int64_t* rows) {
  const size_t num_ranges = offsets.size() - 1;
  if (num_ranges <= kLinearSearch) return find_ranges(offsets.data(), num_ranges, places, count, owners, rows);
  for (int64_t i = 0; i < count; ++i) {
    owners[i] = static_cast<int32_t>(search_range(offsets, places[i]));
    rows[i] = places[i] - offsets[owners[i]];
  }
}

class RangeBook final : public PartitionBook {
 public:
  explicit RangeBook(std::vector<int64_t> bounds) : PartitionBook(std::move(bounds)) {}
  const char* kind() const override { return "range"; }

 protected:
  void locate_block(const int64_t* ids, int64_t count, int32_t* owners, int64_t* rows) const override {
    locate_in_ranges(offsets_, ids, count, owners, rows);
  }
  void fill_global_ids(int partition, int64_t* out, ThreadPool* pool) const override {
    const int64_t first = offsets_[partition];
    parallel_for(pool, size(partition), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = first + i;
    });
  }
};

class PermutedBook final : public PartitionBook {
 public:
  PermutedBook(std::vector<int64_t> bounds, uint64_t key)
      : PartitionBook(std::move(bounds)), permutation_(num_ids(), key) {}
  const char* kind() const override { return "permuted"; }

 protected:
  void locate_block(const int64_t* ids, int64_t count, int32_t* owners, int64_t* rows) const override {
    int64_t places[kBlock];
    permute(permutation_, ids, places, count);
    locate_in_ranges(offsets_, places, count, owners, rows);
  }
  void fill_global_ids(int partition, int64_t* out, ThreadPool* pool) const override {
    const int64_t first = offsets_[partition];
    parallel_for(pool, size(partition), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = first + i;
      permute(permutation_, out + begin, out + begin, end - begin, /*inverse=*/true);
    });
  }

 private:
  Permutation permutation_;
};

template <typename Owner, typename Row>
class TableBook final : public PartitionBook {
 public:
  TableBook(std::vector<int64_t> offsets, Tensor owners, Tensor rows)
      : PartitionBook(std::move(offsets)), owners_(std::move(owners)), rows_(std::move(rows)) {}
  const char* kind() const override { return "table"; }

 protected:
  void locate_block(const int64_t* ids, int64_t count, int32_t* owners, int64_t* rows) const override {
    const Owner* owner_of = owners_.as<Owner>();
    const Row* row_of = rows_.as<Row>();
    for (int64_t i = 0; i < count; ++i) {
      owners[i] = static_cast<int32_t>(owner_of[ids[i]]);
      rows[i] = static_cast<int64_t>(row_of[ids[i]]);
    }
  }
  void fill_global_ids(int partition, int64_t* out, ThreadPool* pool) const override {
    const Owner* owner_of = owners_.as<Owner>();
    const Row* row_of = rows_.as<Row>();
    parallel_for(pool, num_ids(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t id = begin; id < end; ++id)
        if (static_cast<int>(owner_of[id]) == partition) out[row_of[id]] = id;
    });
  }

 private:
  Tensor owners_, rows_;
};

template <typename Place>
class ZoneBook final : public PartitionBook {
 public:
  // `first_rows`: where each zone begins among its owner's rows.
  ZoneBook(std::vector<int64_t> offsets, Tensor place, std::vector<int64_t> bounds, std::vector<int32_t> zone_owners,
           std::vector<int64_t> first_rows)
      : PartitionBook(std::move(offsets)),
        place_(std::move(place)),
        bounds_(std::move(bounds)),
        zone_owners_(std::move(zone_owners)),
        first_rows_(std::move(first_rows)) {}
  const char* kind() const override { return "zones"; }

 protected:
  void locate_block(const int64_t* ids, int64_t count, int32_t* owners, int64_t* rows) const override {
    const Place* place_of = place_.as<Place>();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t place = static_cast<int64_t>(place_of[ids[i]]);
      const size_t zone = search_range(bounds_, place);
      owners[i] = zone_owners_[zone];
      rows[i] = first_rows_[zone] + (place - bounds_[zone]);
    }
  }
  void fill_global_ids(int partition, int64_t* out, ThreadPool* pool) const override {
    parallel_for(pool, num_ids(), kGrain, [=, this](int64_t begin, int64_t end) {
      int64_t ids[kBlock], rows[kBlock];
      int32_t owners[kBlock];
      for (int64_t first = begin; first < end; first += kBlock) {
        const int64_t count = std::min(kBlock, end - first);
        for (int64_t i = 0; i < count; ++i) ids[i] = first + i;
        locate_block(ids, count, owners, rows);
        for (int64_t i = 0; i < count; ++i)
          if (owners[i] == partition) out[rows[i]] = first + i;
      }
    });
  }

 private:
  Tensor place_;
  std::vector<int64_t> bounds_;
  std::vector<int32_t> zone_owners_;
  std::vector<int64_t> first_rows_;
};

void check_num_partitions(int num_partitions) {
  if (num_partitions < 1 || num_partitions > kMaxPartitions)
    throw InvalidArgument(message("num_partitions: expected 1 to ", kMaxPartitions, ", got ", num_partitions));
}

template <typename Owner>
std::vector<int64_t> count_owners(const Owner* owners, int64_t num_ids, int num_partitions) {
  std::vector<int64_t> offsets(static_cast<size_t>(num_partitions) + 1, 0);
  for (int64_t id = 0; id < num_ids; ++id) {
    const int64_t owner = static_cast<int64_t>(owners[id]);
    if (owner < 0 || owner >= num_partitions)
      throw InvalidArgument(message("owners[", id, "]=", owner, ": expected 0 <= owner < ", num_partitions));
    ++offsets[static_cast<size_t>(owner) + 1];
  }
  for (size_t p = 1; p < offsets.size(); ++p) offsets[p] += offsets[p - 1];
  return offsets;
}

template <typename Owner, typename Row>
void check_rows(const Owner* owners, const Row* rows, int64_t num_ids, const std::vector<int64_t>& offsets) {
  std::vector<bool> taken(static_cast<size_t>(num_ids), false);
  for (int64_t id = 0; id < num_ids; ++id) {
    const size_t owner = static_cast<size_t>(owners[id]);
    const int64_t row = static_cast<int64_t>(rows[id]);
    const int64_t size = offsets[owner + 1] - offsets[owner];
    if (row < 0 || row >= size)
      throw InvalidArgument(
          message("rows[", id, "]=", row, ": expected 0 <= row < ", size, ", what partition ", owner, " owns"));
    const size_t place = static_cast<size_t>(offsets[owner] + row);
    if (taken[place])
      throw InvalidArgument(message("rows[", id, "]=", row, ": partition ", owner, " has another id in this row"));
    taken[place] = true;
  }
}

std::vector<int64_t> read_indices(const Tensor& values, const char* name) {
  check_index_vector(values, name);
  std::vector<int64_t> out(static_cast<size_t>(values.numel()));
  dispatch_index(values.dtype, name, [&](auto type) {
    const auto* source = values.as<decltype(type)>();
    std::copy(source, source + values.numel(), out.begin());
  });
  return out;
}

void check_ascending(const std::vector<int64_t>& bounds) {
  if (bounds.empty() || bounds[0] != 0)
    throw InvalidArgument(message("bounds[0]: expected 0, got ", bounds.empty() ? "none" : std::to_string(bounds[0])));
  for (size_t p = 1; p < bounds.size(); ++p)
    if (bounds[p] < bounds[p - 1])
      throw InvalidArgument(
          message("bounds[", p, "]=", bounds[p], ": expected ascending bounds, got ", bounds[p - 1], " before it"));
}

template <typename Place>
void check_permutation(const Place* place, int64_t count) {
  std::vector<bool> taken(static_cast<size_t>(count), false);
  for (int64_t id = 0; id < count; ++id) {
    const int64_t at = static_cast<int64_t>(place[id]);
    if (at < 0 || at >= count)
      throw InvalidArgument(message("place[", id, "]=", at, ": expected 0 <= place < ", count));
    if (taken[static_cast<size_t>(at)])
      throw InvalidArgument(message("place[", id, "]=", at, ": expected a permutation, and another id has this place"));
    taken[static_cast<size_t>(at)] = true;
  }
}

template <typename Body>
auto dispatch_owner(DType dtype, Body&& body) {
  if (dtype == kUInt8) return body(uint8_t{});
  if (dtype == DType{Kind::kUInt, 16}) return body(uint16_t{});
  if (dtype == kInt32) return body(int32_t{});
  throw InvalidArgument(message("owners: expected dtype uint8, uint16 or int32, got ", to_string(dtype)));
}

}  // namespace

std::shared_ptr<const PartitionBook> PartitionBook::range(const Tensor& bounds) {
  std::vector<int64_t> offsets = read_indices(bounds, "bounds");
  check_num_partitions(static_cast<int>(std::min<size_t>(offsets.size(), size_t{1} << 30)) - 1);
  check_ascending(offsets);
  return std::make_shared<RangeBook>(std::move(offsets));
}

std::shared_ptr<const PartitionBook> PartitionBook::permuted(int64_t num_ids, int num_partitions, uint64_t key) {
  check_num_partitions(num_partitions);
  if (num_ids < 0 || num_ids > Permutation::kMaxSize)
    throw InvalidArgument(message("num_ids: expected 0 to ", Permutation::kMaxSize, ", got ", num_ids));
  std::vector<int64_t> offsets(static_cast<size_t>(num_partitions) + 1, 0);
  for (int p = 0; p < num_partitions; ++p)
    offsets[p + 1] = offsets[p] + num_ids / num_partitions + (p < num_ids % num_partitions);
  return std::make_shared<PermutedBook>(std::move(offsets), key);
}

std::shared_ptr<const PartitionBook> PartitionBook::table(const Tensor& owners, const Tensor& rows,
                                                          int num_partitions) {
  check_num_partitions(num_partitions);
  check_index_vector(rows, "rows");
  if (owners.shape.size() != 1 || owners.numel() != rows.numel())
    throw InvalidArgument(message("owners: expected a vector as long as rows, ", rows.numel(), ", got ", owners.numel(),
                                  " elements in ", owners.shape.size(), " dimensions"));
  return dispatch_owner(owners.dtype, [&](auto owner_type) {
    using Owner = decltype(owner_type);
    std::vector<int64_t> offsets = count_owners(owners.as<Owner>(), owners.numel(), num_partitions);
    return dispatch_index(rows.dtype, "rows", [&](auto row_type) -> std::shared_ptr<const PartitionBook> {
      using Row = decltype(row_type);
      check_rows(owners.as<Owner>(), rows.as<Row>(), rows.numel(), offsets);
      return std::make_shared<TableBook<Owner, Row>>(std::move(offsets), owners, rows);
    });
  });
}

std::shared_ptr<const PartitionBook> PartitionBook::zones(const Tensor& place, const Tensor& bounds,
                                                          const Tensor& owners, int num_partitions) {
  check_num_partitions(num_partitions);
  check_index_vector(place, "place");
  std::vector<int64_t> ends = read_indices(bounds, "bounds");
  const std::vector<int64_t> given = read_indices(owners, "owners");
  check_ascending(ends);
  if (ends.size() != given.size() + 1 || ends.size() < 2 || ends.back() != place.numel())
    throw InvalidArgument(message("bounds: expected ", given.size() + 1, " of ", given.size(), " zones, to ",
                                  place.numel(), ", got ", ends.size(), " to ", ends.back()));
  count_owners(given.data(), owners.numel(), num_partitions);  // each is one
  std::vector<int64_t> offsets(static_cast<size_t>(num_partitions) + 1, 0), first_rows(given.size());
  for (size_t zone = 0; zone < given.size(); ++zone) {
    int64_t& size = offsets[static_cast<size_t>(given[zone]) + 1];
    first_rows[zone] = size;
    size += ends[zone + 1] - ends[zone];
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  return dispatch_index(place.dtype, "place", [&](auto type) -> std::shared_ptr<const PartitionBook> {
    using Place = decltype(type);
    check_permutation(place.as<Place>(), place.numel());
    return std::make_shared<ZoneBook<Place>>(std::move(offsets), place, std::move(ends),
                                             std::vector<int32_t>(given.begin(), given.end()), std::move(first_rows));
  });
}

void PartitionBook::check_partition(int partition) const {
  if (partition < 0 || partition >= num_partitions())
    throw InvalidArgument(message("partition: expected 0 <= partition < ", num_partitions(), ", got ", partition));
}

int64_t PartitionBook::size(int partition) const {
  check_partition(partition);
  return offsets_[partition + 1] - offsets_[partition];
}

template <typename T>
void PartitionBook::locate(const T* ids, int64_t count, int32_t* owners, int64_t* rows, int64_t first_position) const {
  int64_t wide[kBlock], row_block[kBlock];
  int32_t owner_block[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    if (!widen(ids + begin, size, num_ids(), wide)) throw_unknown("ids", wide, size, num_ids(), first_position + begin);
    locate_block(wide, size, owners ? owners + begin : owner_block, rows ? rows + begin : row_block);
  }
}

template void PartitionBook::locate(const int32_t*, int64_t, int32_t*, int64_t*, int64_t) const;
template void PartitionBook::locate(const int64_t*, int64_t, int32_t*, int64_t*, int64_t) const;

void PartitionBook::locate(const Tensor& ids, int32_t* owners, int64_t* rows, ThreadPool* pool) const {
  check_index_vector(ids, "ids");
  dispatch_index(ids.dtype, "ids", [&](auto type) {
    const auto* source = ids.as<decltype(type)>();
    parallel_for(pool, ids.numel(), kGrain, [&](int64_t begin, int64_t end) {
      locate(source + begin, end - begin, owners ? owners + begin : nullptr, rows ? rows + begin : nullptr, begin);
    });
  });
}

void PartitionBook::local_rows(const Tensor& ids, int partition, int64_t* rows, ThreadPool* pool) const {
  check_partition(partition);
  check_index_vector(ids, "ids");
  dispatch_index(ids.dtype, "ids", [&](auto type) {
    const auto* source = ids.as<decltype(type)>();
    parallel_for(pool, ids.numel(), kGrain, [&](int64_t chunk_begin, int64_t chunk_end) {
      int32_t owners[kBlock];
      for (int64_t begin = chunk_begin; begin < chunk_end; begin += kBlock) {
        const int64_t count = std::min(kBlock, chunk_end - begin);
        locate(source + begin, count, owners, rows + begin, begin);
        for (int64_t i = 0; i < count; ++i)
          if (owners[i] != partition)
            throw UnknownId(message("ids[", begin + i, "]=", source[begin + i], ": belongs to partition ", owners[i],
                                    ", not to partition ", partition, " (ids are 0 <= id < ", num_ids(), ")"));
      }
    });
  });
}

Tensor PartitionBook::global_ids(int partition, ThreadPool* pool) const {
  Tensor out = empty({size(partition)}, kInt64);
  fill_global_ids(partition, out.as<int64_t>(), pool);
  return out;
}

Tensor permute_indices(const Tensor& indices, int64_t n, uint64_t key, bool inverse, ThreadPool* pool) {
  check_index_vector(indices, "indices");
  if (n < 0 || n > Permutation::kMaxSize)
    throw InvalidArgument(message("n: expected 0 to ", Permutation::kMaxSize, ", got ", n));
  const Permutation permutation(n, key);
  Tensor out = empty({indices.numel()}, kInt64);
  int64_t* target = out.as<int64_t>();
  dispatch_index(indices.dtype, "indices", [&](auto type) {
    const auto* source = indices.as<decltype(type)>();
    parallel_for(pool, indices.numel(), kGrain, [&](int64_t begin, int64_t end) {
      if (!widen(source + begin, end - begin, n, target + begin))
        throw_unknown("indices", target + begin, end - begin, n, begin);
      permute(permutation, target + begin, target + begin, end - begin, inverse);
    });
  });
  return out;
}

}  // namespace gld

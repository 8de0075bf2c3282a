#include "exchange/ask_once.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/error.h"
#include "sampling/relabel_table.h"

namespace gld::exchange {
namespace {

void check_lookup(const LocatedRows& lookup, int64_t num_bounds) {
  const int64_t num_rows = lookup.rows.numel(), num_asked = lookup.ids.numel();
  check_vector(lookup.rows, kInt64, num_rows, "rows");
  check_vector(lookup.ids, kInt64, num_asked, "ids");
  check_vector(lookup.positions, kInt64, num_asked, "positions");
  check_vector(lookup.offsets, kInt64, num_bounds, "offsets");
  const int64_t* const offsets = lookup.offsets.as<int64_t>();
  const int64_t* const positions = lookup.positions.as<int64_t>();
  if (num_bounds < 1 || offsets[0] != 0 || offsets[num_bounds - 1] != num_asked ||
      !std::is_sorted(offsets, offsets + num_bounds))
    throw InvalidArgument(message("offsets: expected to run from 0 to the number of ids, ", num_asked));
  for (int64_t i = 0; i < num_asked; ++i)
    if (positions[i] < 0 || positions[i] >= num_rows)
      throw InvalidArgument(message("positions[", i, "]: ", positions[i], " is outside [0, ", num_rows, ")"));
}

// -1 of none; throws InvalidArgument for a negative one.
int64_t largest(const Tensor& ids) {
  int64_t most = -1, signs = 0;
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int64_t id = ids.as<int64_t>()[i];
    most = std::max(most, id);
    signs |= id;
  }
  if (signs < 0) throw InvalidArgument("ids: expected none below 0");
  return most;
}

// Gives ids their places in a bucket; how many it holds then.
template <typename View>
int64_t place(View table, const int64_t* ids, const int64_t* positions, int64_t num_ids, int64_t* bucket, int64_t count,
              int64_t* rows) {
  constexpr int64_t kAhead = 32;
  for (int64_t i = 0; i < std::min(kAhead, num_ids); ++i) table.prefetch(ids[i]);
  for (int64_t i = 0; i < num_ids; ++i) {
    if (i + kAhead < num_ids) table.prefetch(ids[i + kAhead]);
    const int64_t id = ids[i];
    uint32_t is_new;
    const uint32_t at = table.insert(id, static_cast<uint32_t>(count), &is_new);
    bucket[at] = id;
    rows[positions[i]] = at;
    count += is_new;
  }
  return count;
}

// The tables of a thread, which stay warm with who asks: those of some small batches have megabytes, which would have
// to be cleared. What takes longer than clearing keeps none.
class Tables {
 public:
  // For so many ids, none above `most_id`. Body(table), where table.begin(count) begins another bucket.
  template <typename Body>
  void with_table(int64_t count, int64_t most_id, Body&& body) {
    // One with an entry for each id is faster, where it is no larger.
    if (most_id < kHashedIds * count) {
      if (!dense_.has_value() || num_dense_ <= most_id) {
        num_dense_ = std::max(most_id + 1, 2 * num_dense_);
        dense_.emplace(num_dense_);
      }
      body(*dense_);
    } else {
      body(hash_);
    }
    if (count > kMostKept) {
      dense_.reset();
      num_dense_ = 0;
      hash_ = HashRelabelTable();
    }
  }

 private:
  static constexpr int64_t kHashedIds = 8;  // entries of the dense table in the bytes that an id takes there
  static constexpr int64_t kMostKept = int64_t{1} << 20;  // ids, of 32 to 64 MiB

  std::optional<DenseRelabelTable> dense_;
  int64_t num_dense_ = 0;
  HashRelabelTable hash_;
};

}  // namespace

AskedOnce ask_once(const std::vector<LocatedRows>& lookups) {
  static thread_local Tables tables;
  if (lookups.empty()) throw InvalidArgument("lookups: expected at least one, got none");
  const int64_t num_bounds = lookups[0].offsets.numel();
  int64_t most = 0, most_id = -1;
  AskedOnce out;
  for (const LocatedRows& lookup : lookups) {
    check_lookup(lookup, num_bounds);
    most += lookup.ids.numel();
    most_id = std::max(most_id, largest(lookup.ids));
    Tensor rows = empty({lookup.rows.numel()}, kInt64);
    std::copy_n(lookup.rows.as<int64_t>(), lookup.rows.numel(), rows.as<int64_t>());
    out.rows.push_back(std::move(rows));
  }
  if (most >= (int64_t{1} << 31)) throw InvalidArgument(message("ids: expected fewer than 2^31, got ", most));
  out.ids = empty({most}, kInt64);
  out.offsets = empty({num_bounds}, kInt64);
  int64_t* const ids = out.ids.as<int64_t>();
  int64_t* const offsets = out.offsets.as<int64_t>();
  offsets[0] = 0;
  tables.with_table(most, most_id, [&](auto& table) {
    for (int64_t p = 0; p + 1 < num_bounds; ++p) {
      int64_t count = 0;
      table.begin(most);
      for (size_t k = 0; k < lookups.size(); ++k) {
        const int64_t begin = lookups[k].offsets.as<int64_t>()[p], end = lookups[k].offsets.as<int64_t>()[p + 1];
        count = place(table.view(end - begin), lookups[k].ids.as<int64_t>() + begin,
                      lookups[k].positions.as<int64_t>() + begin, end - begin, ids + offsets[p], count,
                      out.rows[k].as<int64_t>());
      }
      offsets[p + 1] = offsets[p] + count;
    }
  });
  out.ids.shape = {offsets[num_bounds - 1]};
  return out;
}

}  // namespace gld::exchange

// The kernels that divide ids among their owners, as functors for host and device (see sampling/cuda/batch_steps.h).
#pragma once
#include <cstdint>

#include "common/atomics.h"
#include "common/host_device.h"
#include "common/permutation.h"
#include "sampling/candidates.h"
#include "sampling/pickers.h"

namespace gld {

// A partition book in memory that kernels read: a formula, or two tables.
struct BookView {
  const int64_t* offsets;  // [num_partitions + 1], how many ids the partitions before each own
  int64_t num_partitions, num_ids;
  bool is_permuted;
  Permutation permutation;  // read where is_permuted
  const void* owner_table;  // [num_ids] of owner_bytes each; null: a formula
  int owner_bytes;          // 1, 2: unsigned; 4: signed
  IdReader row_table;       // [num_ids]

  GLD_HOST_DEVICE bool holds(int64_t id) const { return id >= 0 && id < num_ids; }

  // Of an id that the book holds.
  GLD_HOST_DEVICE void locate(int64_t id, int32_t& owner, int64_t& row) const {
    if (owner_table != nullptr) {
      owner = owner_at(id);
      row = row_table(id);
      return;
    }
    const int64_t place = is_permuted ? permutation.forward(id) : id;
    owner = static_cast<int32_t>(count_up_to(offsets + 1, num_partitions, place));
    row = place - offsets[owner];
  }

 private:
  GLD_HOST_DEVICE int32_t owner_at(int64_t id) const {
    if (owner_bytes == 1) return static_cast<const uint8_t*>(owner_table)[id];
    if (owner_bytes == 2) return static_cast<const uint16_t*>(owner_table)[id];
    return static_cast<const int32_t*>(owner_table)[id];
  }
};

// Owner and row of each id; those of an id that the book does not hold are 0.
struct LocateIds {
  BookView book;
  IdReader ids;
  int64_t num_ids;
  int32_t* owners;
  int64_t* rows;     // [num_ids] both
  uint64_t* status;  // lowered to the position of an id that the book does not hold

  GLD_HOST_DEVICE int64_t count() const { return num_ids; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t id = ids(i);
    owners[i] = 0;
    rows[i] = 0;
    if (book.holds(id))
      book.locate(id, owners[i], rows[i]);
    else
      atomic_lower(status, static_cast<uint64_t>(i));
  }
};

// Scan of the ids once for each owner: the number of ids of lower owners, and of this one before an id, is its place.
struct PlaceIds {
  IdReader ids;
  int64_t num_ids, num_partitions;
  const int32_t* owners;
  const int64_t* located;                   // [num_ids] both
  int64_t *out_ids, *out_rows, *positions;  // [num_ids], in buckets by owner
  int64_t* offsets;                         // [num_partitions + 1], bounds of the buckets

  GLD_HOST_DEVICE int64_t count() const { return num_ids * num_partitions; }
  GLD_HOST_DEVICE void measure(int64_t) const {}
  GLD_HOST_DEVICE int64_t value(int64_t k) const { return owners[k % num_ids] == k / num_ids ? 1 : 0; }
  GLD_HOST_DEVICE void store(int64_t k, int64_t is_owned, int64_t place) const {
    const int64_t i = k % num_ids;
    if (i == 0) offsets[k / num_ids] = place;
    if (is_owned == 0) return;
    out_ids[place] = ids(i);
    out_rows[place] = located[i];
    positions[place] = i;
  }
  GLD_HOST_DEVICE void finish(int64_t total) const {
    offsets[num_partitions] = total;
    for (int64_t p = 0; num_ids == 0 && p < num_partitions; ++p) offsets[p] = 0;  // there is nothing to store
  }
};

}  // namespace gld

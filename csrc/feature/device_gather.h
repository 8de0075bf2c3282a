// Feature lookup on a GPU: rows of a tensor that lies in pieces of its memory, of a peer's, or of pinned host memory.
#pragma once
#include <cstdint>

#include "common/cuda_stream.h"
#include "feature/cuda/gather_steps.h"
#include "feature/gather.h"

namespace gld {

constexpr int64_t kMaxDeviceParts = DeviceRows::kMaxParts;

// A cache of rows on the device (feature/cuda/row_cache.h), empty while `uses` is zeros and `slot_rows` all bits. It is
// used by one stream at a time.
struct DeviceRowCache {
  Tensor rows;            // [num_slots, ...], of the store's dtype and row shape
  Tensor uses;            // int64 [rows of the store from first_row on]
  Tensor slot_rows;       // int64 [num_slots]
  Tensor counts;          // int64 [2 * RowCacheView::kSpread], to whose halves rows that are found, and not, are added
  Tensor answers;         // int32 [n], for this gather alone
  int64_t first_row = 0;  // of the store; those before are not cached
  int64_t gather = 0;     // one more with each
};

// out[positions[i]] = store[row_of_id[ids[i]]], or out[i] where `positions` is undefined; ids are rows where
// `row_of_id` is undefined. One launch on the stream, not waited for. `ids` int32/int64 [n], `row_of_id` int32/int64
// [any], -1 for ids without a row, `positions` int64 [n], `out` [m, ...] of the store's row shape and its dtype, or one
// that rows can be cast to (cast_rows.h); `status` int64 [1], -1 beforehand. Ids, rows and places that do not exist
// lower the status, as an unsigned number, to the first i of such; zeros stand in for rows that do not exist. With a
// cache there are two launches more, rows that it has are read there, and those that it takes are put there. Throws
// InvalidArgument where shapes or dtypes do not fit together, CudaError where the launch fails.
void gather_on_device(const RowStore& store, const Tensor& row_of_id, const Tensor& ids, const Tensor& positions,
                      const Tensor& out, const Tensor& status, CudaStream stream, const DeviceRowCache& cache = {},
                      bool is_over_link = true);

}  // namespace gld

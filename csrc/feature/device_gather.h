// Feature lookup on a GPU: rows of a tensor that lies in pieces of its memory, of a peer's, or of pinned host memory.
#pragma once
#include <cstdint>

#include "common/cuda_stream.h"
#include "feature/cuda/gather_steps.h"
#include "feature/gather.h"

namespace gld {

constexpr int64_t kMaxDeviceParts = DeviceRows::kMaxParts;

// out[positions[i]] = store[row_of_id[ids[i]]], or out[i] where `positions` is undefined; ids are rows where
// `row_of_id` is undefined. One launch on the stream, not waited for. `ids` int32/int64 [n], `row_of_id` int32/int64
// [any], -1 for ids without a row, `positions` int64 [n], `out` [m, ...] of the store's row shape and its dtype, or one
// that rows can be cast to (cast_rows.h); `status` int64 [1], -1 beforehand. Ids, rows and places that do not exist
// lower the status, as an unsigned number, to the first i of such; zeros stand in for rows that do not exist. Throws
// InvalidArgument where shapes or dtypes do not fit together, CudaError where the launch fails.
void gather_on_device(const RowStore& store, const Tensor& row_of_id, const Tensor& ids, const Tensor& positions,
                      const Tensor& out, const Tensor& status, CudaStream stream);

}  // namespace gld

// Feature lookup on a GPU: rows of a tensor that lies in pieces of its memory, of a peer's, or of pinned host memory.
#pragma once
#include <cstdint>

#include "common/cuda_stream.h"
#include "feature/cuda/gather_steps.h"
#include "feature/gather.h"

namespace gld {

constexpr int64_t kMaxDeviceParts = DeviceRows::kMaxParts;

// out[positions[i]] = store[rows[i]], or out[i] where `positions` is undefined: one launch on the stream, not waited
// for. `rows` int32/int64 [n], `positions` int64 [n], `out` [m, ...] of the store's row shape and its dtype, or one
// that rows can be cast to (cast_rows.h); `status` int64 [1], -1 beforehand. Rows and places that do not exist lower
// the status, as an unsigned number, to the first i of such, and nothing is written for it. Throws InvalidArgument
// where shapes or dtypes do not fit together, CudaError where the launch fails.
void gather_on_device(const RowStore& store, const Tensor& rows, const Tensor& positions, const Tensor& out,
                      const Tensor& status, CudaStream stream);

}  // namespace gld

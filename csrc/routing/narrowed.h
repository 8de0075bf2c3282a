// Vectors in fewer bytes, for messages.
#pragma once
#include "common/tensor.h"

namespace gld {

// Ids int64 [n] as int32; undefined where not all fit.
Tensor narrowed_ids(const Tensor& ids);

// Counts int64 [n] as uint8, else as int32; undefined where not all fit.
Tensor narrowed_counts(const Tensor& counts);

}  // namespace gld

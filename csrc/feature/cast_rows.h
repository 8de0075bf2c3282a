// Copies rows from scattered places and casts their elements on the way.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/tensor.h"

namespace gld {

// Elements that can be cast: from float16, bfloat16, float32, float64, int8 and uint8, to the four floating types.
bool can_cast(DType from, DType to);

// to[i] = from[i] for `count` rows of `columns` elements; from[count, count + ahead) are the rows that come next, for
// prefetching. The values are those of a cast in torch: exact where they fit, else rounded to nearest, ties to even
// (float64 to 16 bits by way of float32), beyond the range to infinity; NaN stays NaN. can_cast() must be true.
void cast_rows(const char* const* from, char* const* to, int64_t count, int64_t ahead, size_t columns, DType from_dtype,
               DType to_dtype);

}  // namespace gld

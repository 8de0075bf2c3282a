// Where ids stand in a list in order: the rows of edge features that lie with their edges.
#pragma once
#include "common/tensor.h"
#include "common/thread_pool.h"

namespace gld {

// rows[i] int64 [n]: the position of ids[i] in `sorted` (ascending, distinct), -1 where it is not there. Both are
// vectors of int32 or int64, each of its own. `pool` may be null, and never changes a result.
Tensor find_sorted(const Tensor& sorted, const Tensor& ids, ThreadPool* pool);

}  // namespace gld

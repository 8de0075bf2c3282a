// Several lookups that ask for the same ids, which batches that are made together often do.
#pragma once
#include <vector>

#include "common/tensor.h"
#include "routing/split.h"

namespace gld::exchange {

// What several lookups over the same partitions ask for together.
struct AskedOnce {
  std::vector<Tensor> rows;  // of each lookup, as in LocatedRows, but that they are places in the answer to all
  Tensor ids;                // int64 [m], each of an owner's once, in buckets by owner, as they first came
  Tensor offsets;            // int64 [num_partitions + 1], bounds of the buckets
};

// Throws InvalidArgument for lookups that do not belong together, or are no lookups.
AskedOnce ask_once(const std::vector<LocatedRows>& lookups);

}  // namespace gld::exchange

// What is known of owners' answers before their entries are read, on the host or on a GPU.
#pragma once
#include <vector>

#include "routing/split.h"

namespace gld {

// Throws InvalidArgument, naming the partition, unless every part has the shape of its bucket. Reads `offsets`, which
// lies on the host, and no other entry. `num_ids` were split.
void check_parts(int64_t num_ids, const Tensor& offsets, const std::vector<NeighborPart>& parts);

// int32 if all non-empty vectors are (all vectors, if all are empty); else int64.
DType common_dtype(const std::vector<NeighborPart>& parts, Tensor NeighborPart::* field);

// Throws InvalidArgument where some parts with neighbors have edge ids and others none.
bool have_edge_ids(const std::vector<NeighborPart>& parts);

}  // namespace gld

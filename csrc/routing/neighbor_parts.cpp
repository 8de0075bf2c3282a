#include "routing/neighbor_parts.h"

namespace gld {
namespace {

void check_buckets(int64_t num_ids, const Tensor& offsets, size_t num_parts) {
  check_index_vector(offsets, "offsets");
  if (offsets.dtype != kInt64) throw InvalidArgument("offsets: expected dtype int64, as split_by_owner gives them");
  if (offsets.numel() != static_cast<int64_t>(num_parts) + 1)
    throw InvalidArgument(
        message("offsets: expected ", num_parts + 1, " entries for ", num_parts, " parts, got ", offsets.numel()));
  const int64_t* bounds = offsets.as<int64_t>();
  for (size_t p = 0; p < num_parts; ++p)
    if (bounds[p] > bounds[p + 1]) throw InvalidArgument(message("offsets: expected ascending, fails at ", p + 1));
  if (bounds[0] != 0 || bounds[num_parts] != num_ids)
    throw InvalidArgument(message("offsets: expected to run from 0 to len(positions)=", num_ids, ", got ", bounds[0],
                                  " to ", bounds[num_parts]));
}

void check_part(const NeighborPart& part, size_t p, int64_t bucket) {
  if (!part.counts.defined()) {
    if (bucket == 0 && !part.neighbors.defined()) return;
    throw InvalidArgument(message("parts[", p, "]: no answer from partition ", p, " for its ", bucket, " ids"));
  }
  try {
    if (part.counts.dtype != kUInt8 || part.counts.shape.size() != 1) check_index_vector(part.counts, "counts");
    check_index_vector(part.neighbors, "neighbors");
    if (part.edge_ids.defined()) check_index_vector(part.edge_ids, "edge_ids");
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(message("parts[", p, "].", error.what()));
  }
  if (part.counts.numel() != bucket)
    throw InvalidArgument(message("parts[", p, "].counts: partition ", p, " was asked for ", bucket,
                                  " ids and answered for ", part.counts.numel()));
  if (!part.edge_ids.defined()) return;
  if (part.edge_ids.numel() != part.neighbors.numel())
    throw InvalidArgument(message("parts[", p, "].edge_ids: partition ", p, " sent ", part.edge_ids.numel(),
                                  " edge ids for ", part.neighbors.numel(), " neighbors"));
}

}  // namespace

void check_parts(int64_t num_ids, const Tensor& offsets, const std::vector<NeighborPart>& parts) {
  check_buckets(num_ids, offsets, parts.size());
  const int64_t* bounds = offsets.as<int64_t>();
  for (size_t p = 0; p < parts.size(); ++p) check_part(parts[p], p, bounds[p + 1] - bounds[p]);
}

DType common_dtype(const std::vector<NeighborPart>& parts, Tensor NeighborPart::* field) {
  for (const bool count_empty : {false, true}) {
    bool any = false, narrow = true;
    for (const NeighborPart& part : parts) {
      const Tensor& tensor = part.*field;
      if (!tensor.defined() || (tensor.numel() == 0 && !count_empty)) continue;
      any = true;
      narrow &= tensor.dtype == kInt32;
    }
    if (any) return narrow ? kInt32 : kInt64;
  }
  return kInt64;
}

bool have_edge_ids(const std::vector<NeighborPart>& parts) {
  bool any = false;
  for (const NeighborPart& part : parts) any |= part.edge_ids.defined();
  if (!any) return false;
  for (size_t p = 0; p < parts.size(); ++p)
    if (parts[p].neighbors.defined() && parts[p].neighbors.numel() > 0 && !parts[p].edge_ids.defined())
      throw InvalidArgument(message("parts[", p, "].edge_ids: partition ", p, " sent none, others did"));
  return true;
}

}  // namespace gld

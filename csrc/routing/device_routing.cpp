#include "routing/device_routing.h"

#include <utility>

#include "common/cuda/host_executor.h"
#include "common/error.h"
#include "routing/cuda/launch_route.h"
#include "routing/neighbor_parts.h"

namespace gld {
namespace {

void check_scratch(const Tensor& scratch, size_t num_bytes) {
  if (scratch.nbytes() < num_bytes)
    throw InvalidArgument(message("scratch: expected at least ", num_bytes, " bytes, got ", scratch.nbytes()));
}

BookView view_of(const PartitionBook& book, const BookArrays& arrays) {
  const BookArrays expected = book.arrays();
  check_vector(arrays.offsets, kInt64, expected.offsets.numel(), "offsets");
  if (arrays.owners.defined() != expected.owners.defined() || arrays.rows.defined() != expected.rows.defined())
    throw InvalidArgument(message("owners, rows: expected those of a ", book.kind(), " book"));
  if (expected.owners.defined()) {
    check_vector(arrays.owners, expected.owners.dtype, book.num_ids(), "owners");
    check_vector(arrays.rows, expected.rows.dtype, book.num_ids(), "rows");
  }
  const Permutation* permutation = book.permutation();
  return {arrays.offsets.as<int64_t>(),
          book.num_partitions(),
          book.num_ids(),
          permutation != nullptr,
          permutation != nullptr ? *permutation : Permutation(0, 0),
          arrays.owners.data,
          arrays.owners.defined() ? static_cast<int>(arrays.owners.dtype.size()) : 0,
          IdReader(arrays.rows)};
}

}  // namespace

DeviceBook::DeviceBook(const PartitionBook& book, BookArrays arrays)
    : arrays_(std::move(arrays)), view_(view_of(book, arrays_)) {}

void split_on_device(const DeviceBook& book, const Tensor& ids, const Split& out, const Tensor& status,
                     const Tensor& scratch, CudaStream stream) {
  check_index_vector(ids, "ids");
  const int64_t num_ids = ids.numel();
  check_vector(out.ids, kInt64, num_ids, "out_ids");
  check_vector(out.rows, kInt64, num_ids, "rows");
  check_vector(out.positions, kInt64, num_ids, "positions");
  check_vector(out.offsets, kInt64, book.num_partitions() + 1, "offsets");
  check_vector(status, kInt64, 1, "status");
  check_scratch(scratch, SplitLayout(num_ids, book.num_partitions()).num_bytes);
  uint64_t* state = status.as<uint64_t>();
  if (stream.device != kHost) return launch_split(book.view(), ids, out, state, scratch.as<char>(), stream);
  HostExecutor executor;
  run_split(book.view(), ids, out, state, scratch.as<char>(), executor);
}

StitchShape stitch_shape(const StitchInput& input) {
  check_parts(input.positions, input.offsets, input.parts);
  StitchShape shape{input.positions.numel(), 0, common_dtype(input.parts, &NeighborPart::neighbors),
                    common_dtype(input.parts, &NeighborPart::edge_ids), have_edge_ids(input.parts)};
  for (const NeighborPart& part : input.parts)
    if (part.neighbors.defined()) shape.num_neighbors += part.neighbors.numel();
  return shape;
}

void stitch_on_device(const StitchInput& input, const Neighbors& out, const Tensor& status, const Tensor& scratch,
                      CudaStream stream) {
  const StitchShape shape = stitch_shape(input);
  check_vector(out.counts, kInt64, shape.num_ids, "counts");
  check_vector(out.neighbors, shape.neighbors, shape.num_neighbors, "neighbors");
  if (out.edge_ids.defined() != shape.with_edge_ids)
    throw InvalidArgument("edge_ids: expected them where the parts have them, and nowhere else");
  if (shape.with_edge_ids) check_vector(out.edge_ids, shape.edge_ids, shape.num_neighbors, "edge_ids");
  check_vector(status, kInt64, 3, "status");
  check_scratch(scratch, StitchLayout(shape.num_ids).num_bytes);
  auto* state = static_cast<StitchStatus*>(status.data);
  if (stream.device != kHost) return launch_stitch(input, out, state, scratch.as<char>(), stream);
  HostExecutor executor;
  StitchChain<HostExecutor>(input, out, state, scratch.as<char>(), executor).run();
}

}  // namespace gld

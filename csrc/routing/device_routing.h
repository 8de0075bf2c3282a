// A frontier divided among its owners, and their answers put back in its order, by a GPU: what split_by_owner() and
// stitch_neighbors() make, bit by bit.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/cuda_stream.h"
#include "routing/cuda/route_chain.h"
#include "routing/partition_book.h"

namespace gld {

// A partition book in memory that a GPU reads: the arrays of `book` there, of the same dtypes and shapes.
class DeviceBook {
 public:
  // Throws InvalidArgument where the arrays are not such.
  DeviceBook(const PartitionBook& book, BookArrays arrays);

  int64_t num_partitions() const { return view_.num_partitions; }
  const BookView& view() const { return view_; }

 private:
  BookArrays arrays_;
  BookView view_;
};

// Fills `out`, whose tensors are as in Split, launched on the stream and not waited for. `ids` int32 or int64 [n];
// `status` int64 [1] is -1 afterwards, or the position of the first id that the book does not hold, and then `out`
// means nothing. `scratch` has SplitLayout(n, partitions).num_bytes. Throws InvalidArgument where shapes or dtypes do
// not fit together, CudaError where a launch fails.
void split_on_device(const DeviceBook& book, const Tensor& ids, const Split& out, const Tensor& status,
                     const Tensor& scratch, CudaStream stream);

// The shapes and dtypes of what stitch_on_device() fills, known before an entry is read: counts int64 [n], neighbors
// and edge ids [total], edge ids also where they are not asked for. Throws as check_parts() does.
struct StitchShape {
  int64_t num_ids = 0, num_neighbors = 0;
  DType neighbors, edge_ids;
  bool with_edge_ids = false;
};
StitchShape stitch_shape(const StitchInput& input);

// Fills `out`, launched on the stream and not waited for. `status` int64 [3] is -1 three times afterwards, or names the
// first count that is negative or above its part's neighbors, the first position that is outside or stands there twice
// (both by their place in the order of the buckets), and the first part whose counts do not add up; then `out` means
// nothing. `scratch` has StitchLayout(n).num_bytes. Otherwise as above.
void stitch_on_device(const StitchInput& input, const Neighbors& out, const Tensor& status, const Tensor& scratch,
                      CudaStream stream);

}  // namespace gld

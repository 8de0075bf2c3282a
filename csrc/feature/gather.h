// Feature lookup: rows of a tensor that lies in one or several pieces of host memory, or in a file.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "feature/disk_rows.h"

namespace gld {

// Pieces of one logical tensor, in row order: same dtype, same shape but for the number of rows. Pieces may be
// anonymous, shared or memory-mapped memory.
struct RowStore {
  std::vector<Tensor> parts;
  std::vector<int64_t> bounds;  // bounds[i] is the first row of parts[i]; the last entry is the number of rows
  size_t row_bytes = 0;
  std::shared_ptr<DiskRows> disk;  // rows are read from there, and those of the one piece are not touched; null: memory

  int64_t num_rows() const { return bounds.back(); }
  DType dtype() const { return parts[0].dtype; }
  // Of a row in [0, num_rows), in memory.
  const char* address(int64_t row) const;
};

// Checks that the pieces fit together. At least one piece is needed; exactly one, of as many rows, where there is
// `disk`.
RowStore make_row_store(std::vector<Tensor> parts, std::shared_ptr<DiskRows> disk = nullptr);

// Throws InvalidArgument unless `out` has the store's row shape, and its dtype or one that its rows can be cast to.
void check_gathered(const RowStore& store, const Tensor& out);

// Throws UnknownId where one of `rows` (int64 [n]) is outside the store.
void check_rows(const RowStore& store, const Tensor& rows);

// out[i] = store[rows[i]], or out[positions[i]] = store[rows[i]] where `positions` is defined. `rows` int32/int64 [n];
// `positions` int64 [n]. `out` has the store's row shape and `dtype` (the store's unless given); where undefined, a
// pooled [n, ...] is made. A dtype other than the store's is cast to on the way (cast_rows.h); one that cannot be
// throws InvalidArgument. Rows outside the store throw UnknownId, positions outside `out` InvalidArgument, rows on a
// disk that cannot be read StorageFailure. What is written twice is undefined.
Tensor gather_rows(const RowStore& store, const Tensor& rows, const Tensor& positions, Tensor out, ThreadPool& pool,
                   std::optional<DType> dtype = std::nullopt);

// out[i] = stores[owners[i]][rows[i]]: rows of one logical tensor that lie with several owners. `owners` int32 [n],
// `rows` int64 [n], as locate_rows() (routing/split.h) gives them; stores have one dtype and row shape, and `out` is
// [n, ...] of these, or cast to as above. A store may be null where no row is of it. An owner without a store throws
// InvalidArgument, a row outside its store UnknownId.
void gather_located(const std::vector<const RowStore*>& stores, const Tensor& owners, const Tensor& rows,
                    const Tensor& out, ThreadPool& pool);

}  // namespace gld

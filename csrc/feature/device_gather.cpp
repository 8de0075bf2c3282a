#include "feature/device_gather.h"

#include <limits>

#include "common/cuda/host_executor.h"
#include "feature/cast_rows.h"
#include "feature/cuda/launch_gather.h"
#include "feature/cuda/row_cache_steps.h"

namespace gld {
namespace {

DeviceRows device_rows(const RowStore& store) {
  if (static_cast<int64_t>(store.parts.size()) > kMaxDeviceParts)
    throw InvalidArgument(message("tensors: expected at most ", kMaxDeviceParts, " pieces, got ", store.parts.size()));
  DeviceRows out{};
  out.num_parts = static_cast<int>(store.parts.size());
  out.row_bytes = static_cast<int64_t>(store.row_bytes);
  for (int p = 0; p < out.num_parts; ++p) {
    out.parts[p] = static_cast<const char*>(store.parts[p].data);
    out.bounds[p + 1] = store.bounds[p + 1];
  }
  return out;
}

// The largest word that divides the rows and all addresses.
int64_t common_word(const WantedRows& wanted) {
  uint64_t bits = static_cast<uint64_t>(wanted.out_bytes) | reinterpret_cast<uintptr_t>(wanted.out) |
                  reinterpret_cast<uintptr_t>(wanted.cache.rows);
  for (int p = 0; p < wanted.store.num_parts; ++p) bits |= reinterpret_cast<uintptr_t>(wanted.store.parts[p]);
  int64_t word = 16;
  while (bits % word != 0) word /= 2;
  return word;
}

// On the stream, or on the host.
void copy(const WantedRows& wanted, int64_t word_bytes, CudaStream stream) {
  if (stream.device != kHost) return launch_copy(wanted, word_bytes, stream);
  HostExecutor executor;
  run_cache(executor, wanted);
  run_copy(executor, wanted, word_bytes);
}

void cast(const WantedRows& wanted, int64_t columns, const CastElement& how, CudaStream stream) {
  if (stream.device != kHost) return launch_cast(wanted, columns, how, stream);
  HostExecutor executor;
  run_cache(executor, wanted);
  run_cast(executor, wanted, columns, how);
}

RowCacheView view_of(const DeviceRowCache& cache, const RowStore& store, int64_t num_wanted) {
  if (!cache.rows.defined()) return {};
  const int64_t num_slots = cache.slot_rows.shape[0], num_cached = store.num_rows() - cache.first_row;
  if (cache.first_row < 0 || num_cached < 0 || num_slots < 1 || num_slots > std::numeric_limits<int32_t>::max() - 1)
    throw InvalidArgument(
        message("cache: expected slots for rows of the store, got ", num_slots, " slots for ", num_cached, " rows"));
  check_int64_vector(cache.uses, num_cached, "uses");
  check_int64_vector(cache.slot_rows, num_slots, "slot_rows");
  check_int64_vector(cache.counts, 2 * RowCacheView::kSpread, "counts");
  if (cache.rows.nbytes() != static_cast<size_t>(num_slots) * store.row_bytes)
    throw InvalidArgument(message("rows: expected ", num_slots, " slots of ", store.row_bytes, " bytes, got ",
                                  cache.rows.nbytes(), " bytes"));
  if (cache.answers.dtype != kInt32 || cache.answers.numel() != num_wanted)
    throw InvalidArgument(message("answers: expected int32 [", num_wanted, "]"));
  return {cache.rows.as<char>(),
          cache.uses.as<uint64_t>(),
          cache.slot_rows.as<uint64_t>(),
          cache.counts.as<uint64_t>(),
          cache.answers.as<int32_t>(),
          num_slots,
          static_cast<int64_t>(store.row_bytes),
          cache.first_row,
          static_cast<uint16_t>(cache.gather)};
}

}  // namespace

void gather_on_device(const RowStore& store, const Tensor& row_of_id, const Tensor& ids, const Tensor& positions,
                      const Tensor& out, const Tensor& status, CudaStream stream, const DeviceRowCache& cache,
                      bool is_over_link) {
  check_index_vector(ids, "ids");
  if (row_of_id.defined()) check_index_vector(row_of_id, "row_of_id");
  check_int64_vector(status, 1, "status");
  if (positions.defined()) check_int64_vector(positions, ids.shape[0], "positions");
  check_gathered(store, out);
  const int64_t columns = static_cast<int64_t>(store.row_bytes / store.dtype().size());
  const WantedRows wanted{device_rows(store),
                          IdReader(row_of_id),
                          row_of_id.defined() ? row_of_id.shape[0] : store.num_rows(),
                          IdReader(ids),
                          positions.as<int64_t>(),
                          ids.shape[0],
                          out.shape[0],
                          out.as<char>(),
                          columns * static_cast<int64_t>(out.dtype.size()),
                          status.as<uint64_t>(),
                          view_of(cache, store, ids.shape[0]),
                          is_over_link};
  if (columns == 0) return;
  if (out.dtype == store.dtype()) return copy(wanted, common_word(wanted), stream);
  cast(wanted, columns, {element_type_of(store.dtype()), element_type_of(out.dtype)}, stream);
}

}  // namespace gld

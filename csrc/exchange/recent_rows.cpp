#include "exchange/recent_rows.h"

#include <mutex>
#include <new>
#include <utility>

#include "common/error.h"

namespace gld::exchange {

RecentRows::RecentRows(size_t num_stores, int64_t num_ids, int64_t block_rows, int num_blocks)
    : ids_(num_ids, block_rows, num_blocks), blocks_(num_stores) {
  if (num_stores == 0) throw InvalidArgument("num_stores: expected at least 1, got 0");
  for (auto& of_store : blocks_) of_store.resize(static_cast<size_t>(num_blocks));
}

void RecentRows::keep(const Tensor& ids, const std::vector<std::shared_ptr<const RowStore>>& answers,
                      ThreadPool& pool) {
  if (answers.size() != blocks_.size())
    throw InvalidArgument(message("answers: expected rows of ", blocks_.size(), " stores, got ", answers.size()));
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  try {
    for (const RecentIds::Run& run : ids_.keep(ids)) write(run, answers, pool);
  } catch (const std::bad_alloc&) {
    forget_all();
  } catch (...) {
    forget_all();  // ids may have places where nothing was written
    throw;
  }
}

void RecentRows::write(const RecentIds::Run& run, const std::vector<std::shared_ptr<const RowStore>>& answers,
                       ThreadPool& pool) {
  for (size_t store = 0; store < answers.size(); ++store) {
    auto& block = blocks_[store][static_cast<size_t>(run.block)];
    if (run.is_begun) {
      // In memory of its own, as somebody may still read what the block was: nobody has touched its pages.
      std::vector<int64_t> shape = answers[store]->parts[0].shape;
      shape[0] = ids_.block_rows();
      block = std::make_shared<const RowStore>(make_row_store({empty(std::move(shape), answers[store]->dtype())}));
    }
    Tensor out = block->parts[0];
    out.data = static_cast<char*>(out.data) + run.first * static_cast<int64_t>(block->row_bytes);
    out.shape[0] = run.sources.numel();
    if (answers[store]->dtype() != out.dtype)
      throw InvalidArgument(message("answers[", store, "]: expected rows of ", to_string(out.dtype),
                                    ", as before, got ", to_string(answers[store]->dtype())));
    gather_rows(*answers[store], run.sources, {}, std::move(out), pool);
  }
}

void RecentRows::forget() {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  forget_all();
}

void RecentRows::forget_all() noexcept {
  ids_.forget();
  for (auto& of_store : blocks_)
    for (auto& block : of_store) block.reset();
}

}  // namespace gld::exchange

#include "exchange/recent_rows.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <numeric>
#include <utility>

#include "common/error.h"

namespace gld::exchange {

RecentRows::RecentRows(size_t num_stores, int64_t num_ids, int64_t block_rows, int num_blocks)
    : ids_(num_ids, block_rows, num_blocks), blocks_(num_stores) {
  if (num_stores == 0) throw InvalidArgument("num_stores: expected at least 1, got 0");
  for (auto& of_store : blocks_) of_store.resize(static_cast<size_t>(num_blocks));
}

void RecentRows::find_also(AtHand at_hand) {
  if (at_hand.book == nullptr) throw InvalidArgument("book: expected the one that rows are looked up with, got none");
  const PartitionBook& book = *at_hand.book;
  const int32_t num_partitions = book.num_partitions();
  if (book.num_ids() != ids_.num_ids() || static_cast<int32_t>(at_hand.is_asked.size()) != num_partitions)
    throw InvalidArgument(message("book: expected one of ", ids_.num_ids(), " ids, got ", book.num_ids(), " of ",
                                  num_partitions, " partitions, ", at_hand.is_asked.size(), " of which are described"));
  if (at_hand.copied != nullptr && at_hand.copy_rows.defined()) {
    const int64_t count = at_hand.copied->size();
    check_vector(at_hand.copy_rows, kInt64, count, "copy_rows");
    const auto* const rows = at_hand.copy_rows.as<int64_t>();
    for (int64_t i = 0; i < count; ++i)
      if (rows[i] < 0 || rows[i] >= count)
        throw InvalidArgument(message("copy_rows[", i, "]=", rows[i], ": expected 0 <= row < ", count));
  }
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  // As LocatedRows has it, copies are behind the partitions, and blocks behind those.
  std::vector<RecentIds::Fixed> fixed{{num_partitions, at_hand.copied == nullptr ? 0 : at_hand.copied->size()}};
  std::vector<size_t> which(static_cast<size_t>(num_partitions), 0);  // by partition, of `fixed`; 0: none
  for (int32_t partition = 0; partition < num_partitions; ++partition) {
    if (at_hand.is_asked[static_cast<size_t>(partition)]) continue;
    which[static_cast<size_t>(partition)] = fixed.size();
    fixed.push_back({partition, book.size(partition)});
  }
  constexpr int64_t kBlock = 4096;
  std::vector<int64_t> ids(kBlock), rows(kBlock);
  std::vector<int32_t> owners(kBlock);
  if (!ids_.add_fixed(fixed, num_partitions + 1)) return;  // what follows fails no more
  if (at_hand.copied != nullptr) {
    const Tensor& listed = at_hand.copied->ids();
    const int64_t* const given = at_hand.copy_rows.defined() ? at_hand.copy_rows.as<int64_t>() : nullptr;
    dispatch_index(listed.dtype, "copied", [&](auto type) {
      const auto* const copied = listed.as<decltype(type)>();
      for (int64_t i = 0; i < listed.numel(); ++i) ids_.fix(0, copied[i], given == nullptr ? i : given[i]);
    });
  }
  for (int64_t begin = 0; begin < book.num_ids(); begin += kBlock) {
    const auto count = static_cast<size_t>(std::min(kBlock, book.num_ids() - begin));
    std::iota(ids.begin(), ids.begin() + static_cast<int64_t>(count), begin);
    book.locate(ids.data(), static_cast<int64_t>(count), owners.data(), rows.data(), begin);
    for (size_t i = 0; i < count; ++i)
      if (const size_t of = which[static_cast<size_t>(owners[i])]; of > 0) ids_.fix(of, ids[i], rows[i]);
  }
  at_hand.copy_rows.owner = nullptr;  // it may be Python's, and is not read any more
  at_hand_ = std::move(at_hand);
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

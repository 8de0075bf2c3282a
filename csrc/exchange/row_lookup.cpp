#include "exchange/row_lookup.h"

#include <algorithm>

#include "common/error.h"
#include "exchange/ask_once.h"
#include "exchange/queries.h"
#include "rpc/frame.h"

namespace gld::exchange {
namespace {

// As torch shows them: "torch.float32 [64]".
std::string row_type(const Tensor& rows) {
  std::string shown = "torch." + to_string(rows.dtype) + " [";
  for (size_t i = 1; i < rows.shape.size(); ++i) shown += (i > 1 ? ", " : "") + std::to_string(rows.shape[i]);
  return shown + "]";
}

// Rows travel as they are stored, and are cast as they are gathered: those of all partitions, of which there are
// `num_partitions`, and the copies behind them are alike, whatever is made of them.
void check_alike(const std::string& name, const std::vector<const RowStore*>& stores, size_t num_partitions) {
  const RowStore* first = nullptr;
  for (size_t i = 0; i < stores.size(); ++i) {
    if (stores[i] == nullptr) continue;
    if (first == nullptr) first = stores[i];
    const Tensor &rows = stores[i]->parts[0], &others = first->parts[0];
    if (rows.dtype == others.dtype && rows.shape.size() == others.shape.size() &&
        std::equal(rows.shape.begin() + 1, rows.shape.end(), others.shape.begin() + 1))
      continue;
    const std::string who = i < num_partitions ? message("partition ", i, " has") : std::string("copies are");
    throw InvalidArgument(message(name, ": ", who, " rows of ", row_type(rows), ", another one of ", row_type(others)));
  }
}

}  // namespace

void check_plan(const RowPlan& plan) {
  for (const RowGroup& group : plan.groups) {
    if (group.stores.empty()) throw InvalidArgument("groups: expected a store in each");
    if (group.book != nullptr && group.book->num_partitions() != static_cast<int>(plan.is_asked.size()))
      throw InvalidArgument(message("groups: expected books of ", plan.is_asked.size(), " partitions"));
    if (group.recent != nullptr && group.recent->num_stores() != group.stores.size())
      throw InvalidArgument(message("recent: expected rows of ", group.stores.size(), " stores, got those of ",
                                    group.recent->num_stores()));
    const RecentRows::AtHand* const found = group.recent == nullptr ? nullptr : group.recent->at_hand();
    if (found != nullptr && (found->book != group.book || found->copied != group.copied ||
                             found->is_asked != plan.is_asked || found->copy_rows.data != group.copy_rows.data))
      throw InvalidArgument("recent: expected rows that are found with this book, these copies and who is asked");
    if (group.copied != nullptr && group.copy_rows.defined())
      check_vector(group.copy_rows, kInt64, group.copied->size(), "copy_rows");
  }
}

RowLookup::RowLookup(std::shared_ptr<const RowPlan> plan, std::shared_ptr<ThreadPool> pool)
    : plan_(std::move(plan)), pool_(std::move(pool)), groups_(plan_->groups.size()) {}

const RowLookup::Found& RowLookup::of(size_t batch, size_t group) const {
  if (batch >= batches_.size() || group >= groups_.size() || !batches_[batch][group].is_wanted)
    throw InvalidArgument(message("batch, group: expected one that is looked up, got ", batch, ", ", group));
  return batches_[batch][group];
}

Tensor RowLookup::Together::asked_of(int partition) const {
  Tensor part = ids;
  part.data = ids.as<int64_t>() + offsets.as<int64_t>()[partition];
  part.shape = {count(partition)};
  return part;
}

std::vector<Asked> RowLookup::begin(const std::vector<std::vector<Wanted>>& wanted) {
  if (!batches_.empty()) throw InvalidArgument("begin: expected a lookup that has not begun");
  for (const auto& of_batch : wanted)
    if (of_batch.size() != groups_.size())
      throw InvalidArgument(
          message("wanted: expected entries of ", groups_.size(), " groups for each batch, got ", of_batch.size()));
  batches_.assign(wanted.size(), std::vector<Found>(groups_.size()));
  for (size_t group = 0; group < groups_.size(); ++group) {
    locate(group, wanted);
    ask_together(group);
  }
  std::vector<Asked> asked;
  for (int partition = 0; partition < num_partitions(); ++partition) {
    RowsQuery query;
    std::vector<size_t> about;
    for (size_t group = 0; group < groups_.size(); ++group) {
      const Together& together = groups_[group];
      if (!together.offsets.defined() || together.count(partition) == 0) continue;
      const Tensor ids = fewest_bytes(together.asked_of(partition));
      for (const std::string& store : plan_->groups[group].stores) query.parts.push_back({store, ids});
      about.push_back(group);
    }
    if (about.empty()) continue;
    asked.push_back({partition, encode_query(std::move(query))});
    sent_.push_back({partition, std::move(about)});
  }
  return asked;
}

void RowLookup::locate(size_t group, const std::vector<std::vector<Wanted>>& wanted) {
  const RowGroup& of_group = plan_->groups[group];
  KeptCopies copies{of_group.copied.get(), of_group.copy_rows, nullptr};
  std::optional<RecentRows::Reading> recent;
  if (of_group.recent != nullptr) {
    recent.emplace(*of_group.recent);
    copies.recent = &recent->ids();
    groups_[group].kept = recent->blocks();
  }
  for (size_t batch = 0; batch < wanted.size(); ++batch) {
    const Wanted& of_batch = wanted[batch][group];
    Found& found = batches_[batch][group];
    found.is_wanted = of_batch.ids.defined() || of_batch.places.has_value();
    if (!found.is_wanted) continue;
    if (of_batch.places.has_value() == (of_group.book != nullptr))
      throw InvalidArgument("wanted: expected ids where a group has a book, else places");
    found.located = of_batch.places.has_value()
                        ? *of_batch.places
                        : locate_rows(of_batch.ids, *of_group.book, plan_->is_asked, pool_.get(), copies);
    found.counts = {found.located.num_copied, found.located.num_recent, found.located.ids.numel()};
  }
}

void RowLookup::ask_together(size_t group) {
  std::vector<Found*> having;
  int64_t num_asked = 0;
  for (std::vector<Found>& of_batch : batches_) {
    if (!of_batch[group].is_wanted) continue;
    having.push_back(&of_batch[group]);
    num_asked += of_batch[group].counts.asked;
  }
  if (num_asked == 0) return;
  Together& together = groups_[group];
  together.answers.assign(plan_->groups[group].stores.size(),
                          std::vector<std::shared_ptr<const RowStore>>(plan_->is_asked.size()));
  if (!plan_->repeats && having.size() == 1) {
    together.ids = having[0]->located.ids;
    together.offsets = having[0]->located.offsets;
    return;
  }
  std::vector<LocatedRows> lookups;
  for (const Found* found : having) lookups.push_back(found->located);
  AskedOnce once = ask_once(lookups);
  together.ids = std::move(once.ids);
  together.offsets = std::move(once.offsets);
  for (size_t i = 0; i < having.size(); ++i) {
    LocatedRows& located = having[i]->located;
    located.rows = std::move(once.rows[i]);
    located.ids = located.positions = located.offsets = {};
  }
}

void RowLookup::take(size_t i, const rpc::IncomingValue& answer) {
  const Sent& sent = sent_.at(i);
  size_t num_tensors = 0;
  for (const size_t group : sent.groups) num_tensors += plan_->groups[group].stores.size();
  std::vector<Tensor> tensors = decode_answer(answer, num_tensors);
  size_t next = 0;
  for (const size_t group : sent.groups) {
    const int64_t count = groups_[group].count(sent.partition);
    for (auto& of_store : groups_[group].answers) {
      Tensor& rows = tensors[next];
      const bool has_rows = rows.defined() && !rows.shape.empty();
      if (!has_rows || rows.shape[0] != count)
        throw rpc::ProtocolError(message("answer: expected rows for ", count, " ids as tensor ", next, ", got ",
                                         has_rows ? rows.shape[0] : -1));
      of_store[static_cast<size_t>(sent.partition)] =
          std::make_shared<const RowStore>(make_row_store({std::move(rows)}));
      ++next;
    }
  }
}

void RowLookup::gather(size_t batch, size_t group, size_t store, const std::vector<std::shared_ptr<RowStore>>& held,
                       const Tensor& out) const {
  const Found& found = of(batch, group);
  const Together& together = groups_[group];
  const std::vector<std::string>& names = plan_->groups[group].stores;
  if (store >= names.size()) throw InvalidArgument(message("store: expected one of ", names.size(), ", got ", store));
  if (held.size() != plan_->is_asked.size() + 1)
    throw InvalidArgument(message("held: expected rows of ", plan_->is_asked.size(),
                                  " partitions, then those of copies, got ", held.size()));
  if (out.shape.empty() || out.shape[0] != found.located.owners.numel())
    throw InvalidArgument(
        message("out: expected ", found.located.owners.numel(), " rows, got ", out.shape.empty() ? -1 : out.shape[0]));
  std::vector<const RowStore*> stores;
  for (const auto& each : held) stores.push_back(each.get());
  if (!together.kept.empty())
    for (const auto& block : together.kept[store]) stores.push_back(block.get());
  for (size_t partition = 0; partition < plan_->is_asked.size() && !together.answers.empty(); ++partition)
    if (const RowStore* const answered = together.answers[store][partition].get()) stores[partition] = answered;
  check_alike(names[store], stores, plan_->is_asked.size());
  gather_located(stores, found.located.owners, found.located.rows, out, *pool_);
}

void RowLookup::keep() {
  for (size_t group = 0; group < groups_.size(); ++group) {
    RecentRows* const recent = plan_->groups[group].recent.get();
    const Together& together = groups_[group];
    if (recent == nullptr || together.answers.empty()) continue;
    for (int partition = 0; partition < num_partitions(); ++partition) {
      if (together.count(partition) == 0) continue;
      std::vector<std::shared_ptr<const RowStore>> answers;
      for (const auto& of_store : together.answers) answers.push_back(of_store[static_cast<size_t>(partition)]);
      if (answers[0] == nullptr) throw InvalidArgument("keep: expected a lookup all of whose answers were taken");
      recent->keep(together.asked_of(partition), answers, *pool_);
    }
  }
}

}  // namespace gld::exchange

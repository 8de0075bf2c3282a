#include "serving/batch_shelf.h"

#include <iterator>

#include "common/error.h"
#include "rpc/failure.h"

namespace gld::serving {

BatchShelf::Todo::~Todo() {
  for (auto& [receiver, item] : given) receiver->take(std::move(item));
  for (auto& [receiver, failure] : failed) receiver->fail(failure);
}

void BatchShelf::begin_run(int64_t run, int64_t num_batches, BatchShare share, std::optional<uint64_t> credit_bytes,
                           Item end) {
  Todo todo;
  std::lock_guard<std::mutex> lock(mutex_);
  if (run <= run_) throw InvalidArgument(message("run: expected more than ", run_, ", got ", run));
  empty(todo, rpc::pack_error("SamplingWorkerError", message(name_, ": run ", run, " has begun")));
  sent_.clear();
  sent_bytes_ = 0;
  run_ = run;
  num_batches_ = num_batches;
  share_ = std::move(share);
  limit_bytes_ = credit_bytes;
  std::swap(end_, end);
  announced_.assign(announced_.size(), 0);
}

// Who waits fails, and what is there is dropped.
void BatchShelf::empty(Todo& todo, const std::string& failure) {
  for (auto* of : {&waiting_, &in_order_}) {
    for (auto& entry : *of) todo.failed.emplace_back(std::move(entry.second.receiver), failure);
    of->clear();
  }
  for (auto& entry : items_) todo.dropped.push_back(std::move(entry.second));
  items_.clear();
  held_back_.reset();
}

std::optional<int64_t> BatchShelf::worker_of(int64_t index) const {
  const std::optional<int64_t> group = share_.group_of(index);
  if (!group) return std::nullopt;
  return *group % static_cast<int64_t>(announced_.size());
}

void BatchShelf::put(int worker, int64_t run, int64_t index, int64_t count, Item item) {
  Todo todo;
  std::lock_guard<std::mutex> lock(mutex_);
  if (run != run_ || over_) {
    todo.dropped.push_back(std::move(item));
    return;
  }
  announced_[worker] += count;
  auto& place = items_[index];
  std::swap(place, item);
  todo.dropped.push_back(std::move(item));
  hand_on(todo);
}

bool BatchShelf::is_next(int worker, int64_t run, int64_t index, int64_t count) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (run < run_ || over_) return true;  // nobody asks for it
  if (run > run_ || worker_of(index) != worker) return false;
  const auto [num_before, most] = share_.place_of(index, static_cast<int64_t>(announced_.size()));
  return num_before == announced_[worker] && count >= 1 && count <= most;
}

// Gives what is there to who waits for it, as far as it may go.
void BatchShelf::hand_on(Todo& todo) {
  for (auto entry = items_.begin(); entry != items_.end() && !waiting_.empty();) {
    const auto waiting = waiting_.find((entry++)->first);
    if (waiting != waiting_.end()) give(waiting_, waiting, todo);
  }
  while (!in_order_.empty()) {
    const auto first = in_order_.begin();
    const auto item = items_.find(first->first);
    if (item == items_.end()) {
      const std::optional<int64_t> worker = worker_of(first->first);
      if (!worker || !failures_[*worker]) return;
      todo.failed.emplace_back(std::move(first->second.receiver), *failures_[*worker]);
      in_order_.erase(first);
      continue;
    }
    todo.dropped.emplace_back().announcement = std::move(item->second.announcement);  // its worker may go on
    const uint64_t bytes = item->second.payload_bytes;
    const bool is_next = sent_.empty() || sent_.begin()->first > first->first;
    if (limit_bytes_ && !is_next && sent_bytes_ + bytes > *limit_bytes_) {
      if (!held_back_) held_back_ = Clock::now();
      return;
    }
    if (held_back_) credit_ns_ += std::chrono::nanoseconds(Clock::now() - *held_back_).count();
    held_back_.reset();
    sent_[first->first] += bytes;
    sent_bytes_ += bytes;
    give(in_order_, first, todo);
  }
}

void BatchShelf::give(std::map<int64_t, Waiting>& to, std::map<int64_t, Waiting>::iterator waiting, Todo& todo) {
  const auto item = items_.find(waiting->first);
  todo.dropped.emplace_back().announcement = std::move(item->second.announcement);
  todo.given.emplace_back(std::move(waiting->second.receiver), std::move(item->second));
  items_.erase(item);
  to.erase(waiting);
}

void BatchShelf::fail(int worker, std::string failure) {
  Todo todo;
  std::lock_guard<std::mutex> lock(mutex_);
  failures_[worker] = std::move(failure);
  for (auto* of : {&waiting_, &in_order_}) {
    for (auto entry = of->begin(); entry != of->end();) {
      if (worker_of(entry->first) != worker || items_.count(entry->first) != 0) {
        ++entry;
        continue;
      }
      todo.failed.emplace_back(std::move(entry->second.receiver), *failures_[worker]);
      entry = of->erase(entry);
    }
  }
  hand_on(todo);
}

void BatchShelf::end(const std::string& failure) {
  Todo todo;
  std::lock_guard<std::mutex> lock(mutex_);
  if (over_) return;
  over_ = failure;
  empty(todo, failure);
}

uint64_t BatchShelf::fetch(int64_t run, int64_t index, std::optional<int64_t> oldest,
                           std::shared_ptr<Receiver> receiver) {
  Todo todo;
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t number = next_number_++;
  if (over_) {
    todo.failed.emplace_back(std::move(receiver), *over_);
    return number;
  }
  if (run != run_) throw InvalidArgument(message("run: expected the current run ", run_, ", got ", run));
  if (index >= num_batches_) {
    todo.given.emplace_back(std::move(receiver), end_);
    return number;
  }
  const std::optional<int64_t> worker = worker_of(index);
  if (!worker) throw InvalidArgument(message("index: expected one of ", share_.shown, ", got ", index));
  for (auto* of : {&waiting_, &in_order_}) {
    if (const auto earlier = of->find(index); earlier != of->end()) {
      const std::string failure =
          rpc::pack_error("InvalidArgumentError", message("index: batch ", index, " was asked for again"));
      todo.failed.emplace_back(std::move(earlier->second.receiver), failure);
      of->erase(earlier);
    }
  }
  if (failures_[*worker] && items_.count(index) == 0) {
    todo.failed.emplace_back(std::move(receiver), *failures_[*worker]);
    return number;
  }
  const bool by_credit = oldest && limit_bytes_;
  (by_credit ? in_order_ : waiting_).emplace(index, Waiting{number, std::move(receiver)});
  if (by_credit) grant_locked(*oldest);
  hand_on(todo);
  return number;
}

bool BatchShelf::forget(uint64_t fetch) {
  Todo todo;
  std::shared_ptr<Receiver> receiver;  // dies without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto* of : {&waiting_, &in_order_}) {
    for (auto entry = of->begin(); entry != of->end(); ++entry) {
      if (entry->second.number != fetch) continue;
      receiver = std::move(entry->second.receiver);
      if (of == &in_order_ && entry == of->begin()) held_back_.reset();
      of->erase(entry);
      hand_on(todo);
      return true;
    }
  }
  return false;
}

void BatchShelf::grant_locked(int64_t oldest) {
  while (!sent_.empty() && sent_.begin()->first < oldest) {
    sent_bytes_ -= sent_.begin()->second;
    sent_.erase(sent_.begin());
  }
}

void BatchShelf::grant(int64_t run, int64_t oldest) {
  Todo todo;
  std::lock_guard<std::mutex> lock(mutex_);
  if (run != run_) return;
  grant_locked(oldest);
  hand_on(todo);
}

int64_t BatchShelf::announced(int worker) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return announced_[worker];
}

size_t BatchShelf::num_ready() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return items_.size();
}

std::pair<uint64_t, uint64_t> BatchShelf::credit() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return limit_bytes_ ? std::pair(*limit_bytes_, sent_bytes_) : std::pair<uint64_t, uint64_t>(0, 0);
}

uint64_t BatchShelf::credit_ns() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return credit_ns_;
}

}  // namespace gld::serving

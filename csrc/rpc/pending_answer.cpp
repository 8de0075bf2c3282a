#include "rpc/pending_answer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "rpc/stream.h"

namespace gld::rpc {
namespace {

constexpr std::chrono::milliseconds kSlice{50};  // a signal is noticed within this time

std::pair<uint64_t, uint64_t> place_of(const QueryOutcome& lent) {
  return read_place(split_head(lent.frame.head).first);
}

}  // namespace

std::shared_ptr<PendingAnswer> PendingAnswer::ask(std::shared_ptr<QueryClient> client,
                                                  const std::shared_ptr<Stream>& stream, const std::string& service,
                                                  const OutgoingValue& query, Clock::time_point deadline) {
  const std::shared_ptr<PendingAnswer> pending(new PendingAnswer(std::move(client), stream));
  const auto end = [pending](QueryOutcome outcome) { pending->end(std::move(outcome)); };
  const uint64_t number = pending->client_->ask(stream, service, query, deadline, end);
  std::lock_guard<std::mutex> lock(pending->mutex_);
  pending->query_ = number;
  return pending;
}

PendingAnswer::~PendingAnswer() {
  if (!lent_in_ || !stream_->is_here()) return;  // a fork's parent has it still
  try {
    if (outcome_) stream_->give_back(place_of(*outcome_));
  } catch (const std::exception&) {  // there is no memory: the peer keeps it until this process ends
  }
  stream_->count_lent_here(*lent_in_, -1);
}

void PendingAnswer::end(QueryOutcome outcome) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool is_lent = (outcome.frame.header.flags & kFlagArena) != 0;
  if (is_over_) {  // called off at this moment
    if (is_lent) stream_->give_back(place_of(outcome));
    return;
  }
  if (is_lent) {
    try {
      const uint64_t region = place_of(outcome).first;
      stream_->count_lent_here(region, 1);
      lent_in_ = region;
    } catch (const ProtocolError&) {  // who takes it finds that out
    }
  }
  is_over_ = true;
  outcome_ = std::move(outcome);
  changed_.notify_all();
}

bool PendingAnswer::is_over() {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_over_;
}

bool PendingAnswer::wait(Clock::time_point deadline, const std::function<void()>& check) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_over_) {
    const auto now = Clock::now();
    if (now >= deadline) return false;
    changed_.wait_until(lock, std::min<Clock::time_point>(deadline, now + kSlice));
    if (is_over_) break;
    lock.unlock();
    check();
    lock.lock();
  }
  return true;
}

std::optional<QueryOutcome> PendingAnswer::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(outcome_, std::nullopt);
}

void PendingAnswer::borrowed() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto region = std::exchange(lent_in_, std::nullopt)) stream_->count_lent_here(*region, -1);
}

bool PendingAnswer::call_off() {
  uint64_t query = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_over_) return false;
    query = query_;
  }
  client_->forget(query);  // before anybody hears of it, who may ask for the same again
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_over_) return false;
  is_over_ = is_called_off_ = true;
  changed_.notify_all();
  return true;
}

bool PendingAnswer::is_called_off() {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_called_off_;
}

}  // namespace gld::rpc

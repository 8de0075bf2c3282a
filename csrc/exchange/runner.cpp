#include "exchange/runner.h"

#include <pthread.h>
#include <unistd.h>

#include <system_error>
#include <utility>

#include "common/error.h"
#include "common/signals_blocked.h"
#include "rpc/frame.h"
#include "rpc/stream.h"

namespace gld::exchange {

using rpc::QueryOutcome;

namespace {

// Adds the time since `from` to a sum, and begins anew.
void add_since(rpc::Clock::time_point& from, std::atomic<uint64_t>& sum) {
  const auto now = rpc::Clock::now();
  sum.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(now - from).count()), std::memory_order_relaxed);
  from = now;
}

}  // namespace

struct Runner::Run {
  Run(uint64_t number, std::shared_ptr<Exchange> exchange, Holders holders)
      : exchange(std::move(exchange)), holders(std::move(holders)) {
    ending.run = number;
  }
  const std::shared_ptr<Exchange> exchange;
  const Holders holders;

  // Of whoever drives it, one thread at a time.
  bool has_begun = false;
  rpc::Clock::time_point at;    // when it came to the stage in which it is
  std::vector<int> partitions;  // by query of the round, who was asked
  // By query of the round; each is written by whoever brings it, and read when all are there.
  std::vector<QueryOutcome> outcomes;
  std::atomic<size_t> missing{0};  // of them, and one more while the driving thread has something to do

  std::mutex mutex;               // of what follows
  std::vector<uint64_t> queries;  // that are under way, or were
  bool is_cancelled = false;
  Ending ending;
};

Runner::Runner(std::shared_ptr<rpc::QueryClient> client, int num_threads)
    : client_(std::move(client)), owner_(getpid()) {
  const SignalsBlocked blocked;
  try {
    while (threads_.size() < static_cast<size_t>(num_threads)) threads_.emplace_back([this] { work(); });
  } catch (...) {
    close();
    throw;
  }
}

Runner::~Runner() {
  if (getpid() == owner_) {
    close();
  } else {
    for (std::thread& thread : threads_) new std::thread(std::move(thread));  // never freed: only the parent has them
  }
}

uint64_t Runner::start(std::shared_ptr<Exchange> exchange, Holders holders) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_stopping_) throw InvalidArgument("start: expected a runner that is not closed");
  const uint64_t number = next_run_++;
  const auto run = std::make_shared<Run>(number, std::move(exchange), std::move(holders));
  runs_.emplace(number, run);
  ready_.push_back(run);
  has_work_.notify_one();
  return number;
}

void Runner::cancel(uint64_t number) {
  std::shared_ptr<Run> run;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = runs_.find(number);
    if (found == runs_.end()) return;
    run = found->second;
  }
  std::vector<uint64_t> queries;
  {
    std::lock_guard<std::mutex> lock(run->mutex);
    run->is_cancelled = true;
    queries = run->queries;
  }
  for (const uint64_t query : queries)
    if (client_->forget(query)) leave_round(run);
}

std::vector<Ending> Runner::poll() {
  std::lock_guard<std::mutex> lock(mutex_);
  bell_.hush();
  return std::exchange(endings_, {});
}

void Runner::close() {
  if (getpid() != owner_) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
    has_work_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  std::vector<uint64_t> left;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [number, run] : runs_) left.push_back(number);
  }
  for (const uint64_t number : left) cancel(number);        // answers that come now have nobody to go to
  std::unordered_map<uint64_t, std::shared_ptr<Run>> runs;  // die without the lock
  std::deque<std::shared_ptr<Run>> ready;
  std::lock_guard<std::mutex> lock(mutex_);
  runs = std::exchange(runs_, {});
  ready = std::exchange(ready_, {});
}

// --- its threads -----------------------------------------------------------------------------------------------------

void Runner::work() {
  pthread_setname_np(pthread_self(), "gld-exchange");
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    has_work_.wait(lock, [this] { return is_stopping_ || !ready_.empty(); });
    if (is_stopping_) return;
    std::shared_ptr<Run> run = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    advance(run);
    run.reset();  // without the lock: what it holds may be Python's, whose threads wait for the lock with the GIL
    lock.lock();
  }
}

// Goes on until answers are missing, or it is over.
void Runner::advance(const std::shared_ptr<Run>& run) {
  try {
    do {
      if (std::exchange(run->has_begun, true)) {
        add_since(run->at, wait_ns_);
        end_round(*run);
        if (run->ending.what != Ending::What::kDone) break;
        run->exchange->stitch();
        add_since(run->at, stitch_ns_);
      } else {
        run->at = rpc::Clock::now();
      }
      if (!begin_round(run)) return;
    } while (!run->outcomes.empty());
  } catch (...) {
    run->ending.what = Ending::What::kError;
    run->ending.error = std::current_exception();
  }
  finish(run);
}

bool Runner::begin_round(const std::shared_ptr<Run>& run) {
  const std::vector<Asked> asked = run->exchange->next();
  run->partitions.clear();
  run->outcomes.assign(asked.size(), {});
  run->missing = asked.size() + 1;
  const auto deadline = rpc::Clock::now() + rpc::seconds(run->holders.timeout_s);
  size_t num_unsent = asked.size();
  try {
    for (const Asked& each : asked) run->partitions.push_back(each.partition);
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto& stream = run->holders.streams.at(asked[i].partition);
      if (stream == nullptr) {
        --num_unsent;
        answered(run, i, {QueryOutcome::What::kLost, {}, "not connected"});
        continue;
      }
      // It stays as long as somebody may still bring it an answer.
      const uint64_t query = client_->ask(
          stream, run->holders.service, asked[i].query, deadline,
          [self = shared_from_this(), run, i](QueryOutcome outcome) { self->answered(run, i, std::move(outcome)); });
      --num_unsent;
      bool is_cancelled;
      {
        std::lock_guard<std::mutex> lock(run->mutex);
        run->queries.push_back(query);
        is_cancelled = run->is_cancelled;
      }
      if (is_cancelled && client_->forget(query)) leave_round(run);
    }
    add_since(run->at, split_ns_);
    if (!asked.empty()) run->exchange->meanwhile();
    add_since(run->at, own_ns_);
  } catch (...) {
    std::lock_guard<std::mutex> lock(run->mutex);
    run->ending.what = Ending::What::kError;
    run->ending.error = std::current_exception();
  }
  return run->missing.fetch_sub(1 + num_unsent) == 1 + num_unsent;
}

void Runner::end_round(Run& run) {
  std::lock_guard<std::mutex> lock(run.mutex);
  run.queries.clear();
  Ending& ending = run.ending;
  if (run.is_cancelled) ending.what = Ending::What::kLost;
  for (size_t i = 0; i < run.outcomes.size() && ending.what == Ending::What::kDone; ++i) {
    QueryOutcome& outcome = run.outcomes[i];
    ending.partition = run.partitions[i];
    switch (outcome.what) {
      case QueryOutcome::What::kAnswered:
      case QueryOutcome::What::kFailed:
        take(run, i);
        break;
      case QueryOutcome::What::kLost:
        ending.what = Ending::What::kLost;
        ending.failure = outcome.why;
        break;
      case QueryOutcome::What::kLate:
        ending.what = Ending::What::kLate;
        break;
    }
  }
}

void Runner::take(Run& run, size_t i) {
  const rpc::Frame& frame = run.outcomes[i].frame;
  try {
    const auto [meta, head] = rpc::split_head(frame.head);
    if ((frame.header.flags & rpc::kFlagArena) != 0)
      throw rpc::ProtocolError("answer: expected its payload behind its head");
    if (run.outcomes[i].what == QueryOutcome::What::kAnswered) {
      run.exchange->take(i, {head, frame.payload.get(), frame.header.inline_bytes(), frame.payload});
    } else {
      run.ending.what = Ending::What::kFailed;
      run.ending.failure = meta;
    }
  } catch (const rpc::ProtocolError& error) {
    run.ending.what = Ending::What::kMalformed;
    run.ending.failure = error.what();
  }
}

void Runner::answered(const std::shared_ptr<Run>& run, size_t i, QueryOutcome outcome) {
  run->outcomes[i] = std::move(outcome);
  leave_round(run);
}

void Runner::leave_round(const std::shared_ptr<Run>& run) {
  if (run->missing.fetch_sub(1) != 1) return;
  std::lock_guard<std::mutex> lock(mutex_);
  ready_.push_back(run);
  has_work_.notify_one();
}

void Runner::finish(const std::shared_ptr<Run>& run) {
  run->outcomes.clear();
  std::lock_guard<std::mutex> lock(mutex_);
  runs_.erase(run->ending.run);
  if (endings_.empty()) bell_.ring();
  endings_.push_back(run->ending);
}

}  // namespace gld::exchange

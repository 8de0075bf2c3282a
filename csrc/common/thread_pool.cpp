#include "common/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "common/error.h"

namespace gld {
namespace {

// A batch is a chain of short loops. Who waits looks out for this long before it sleeps, since being woken takes about
// as long as the pause between two of them.
constexpr std::chrono::microseconds kLookOut{100};

// Waits a little for a condition that another thread brings about. May return before it holds.
template <typename Condition>
void look_out_for(Condition&& holds) {
  const auto end = std::chrono::steady_clock::now() + kLookOut;
  while (!holds() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace

struct ThreadPool::Loop {
  int64_t count, chunk;
  const std::function<void(int64_t, int64_t)>* body;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
};

ThreadPool::ThreadPool(int num_threads) : last_cpus_(new std::atomic<int>[std::max(num_threads, 1)]) {
  if (num_threads < 1) throw InvalidArgument(message("num_threads: expected at least 1, got ", num_threads));
  for (int i = 0; i + 1 < num_threads; ++i) {
    last_cpus_[i] = -1;
    threads_.emplace_back([this, i] { run_thread(i); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::work(Loop& loop) {
  for (;;) {
    const int64_t begin = loop.next.fetch_add(loop.chunk, std::memory_order_relaxed);
    if (begin >= loop.count) return;
    try {
      (*loop.body)(begin, std::min(begin + loop.chunk, loop.count));
    } catch (...) {
      std::lock_guard<std::mutex> lock(loop.mutex);
      if (!loop.error) loop.error = std::current_exception();
      loop.next.store(loop.count, std::memory_order_relaxed);
    }
  }
}

void ThreadPool::run_thread(int index) {
  uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || (loop_ != nullptr && generation_ != seen); });
    if (stopping_) return;
    seen = generation_;
    Loop* loop = loop_;
    ++busy_;
    lock.unlock();
    work(*loop);
    last_cpus_[index].store(sched_getcpu(), std::memory_order_relaxed);
    lock.lock();
    if (--busy_ == 0) done_.notify_all();
    lock.unlock();
    look_out_for([&] { return has_news(seen); });
    lock.lock();
  }
}

void ThreadPool::spread() {
  const int here = sched_getcpu();
  cpu_set_t allowed;
  bool is_known = false;
  for (size_t i = 0; i < threads_.size(); ++i) {
    const int last = last_cpus_[i].load(std::memory_order_relaxed);
    if (last >= 0 && last != here) continue;
    if (!is_known && sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
    is_known = true;
    if (CPU_COUNT(&allowed) < 2 || !CPU_ISSET(here, &allowed)) return;
    cpu_set_t elsewhere = allowed;
    CPU_CLR(here, &elsewhere);
    // The first call moves the thread, the second lets it go where it likes again.
    pthread_setaffinity_np(threads_[i].native_handle(), sizeof(elsewhere), &elsewhere);
    pthread_setaffinity_np(threads_[i].native_handle(), sizeof(allowed), &allowed);
  }
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  // Four chunks a thread even out chunks of unequal cost.
  const int64_t chunk = std::max(grain, (count + 4 * size() - 1) / (4 * size()));
  if (threads_.empty() || chunk >= count) return body(0, count);
  std::unique_lock<std::mutex> turn(callers_, std::try_to_lock);
  if (!turn.owns_lock()) return body(0, count);
  Loop loop{count, chunk, &body, {0}, {}, nullptr};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    loop_ = &loop;
    ++generation_;
  }
  wake_.notify_all();
  spread();
  work(loop);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    loop_ = nullptr;  // threads that wake late find nothing; those at work are counted in busy_
  }
  look_out_for([&] { return busy_ == 0; });
  {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return busy_ == 0; });
  }
  if (loop.error) std::rethrow_exception(loop.error);
}

void ThreadPool::on_all_threads(int64_t limit, const std::function<void()>& body) {
  if (limit <= 0) return;
  parallel_for(std::min<int64_t>(size(), limit), 1, [&](int64_t, int64_t) { body(); });
}

}  // namespace gld

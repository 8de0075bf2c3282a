#include "common/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/error.h"

namespace gld {
namespace {

// A batch is a chain of short loops. Who waits looks out for this long before it sleeps, since being woken takes about
// as long as the pause between two of them.
constexpr std::chrono::microseconds kLookOut{100};

constexpr int kMostThreads = 1 << 16;  // more than any machine has cores; bounds what is allocated before they start

// Waits a little for a condition that another thread brings about. May return before it holds.
template <typename Condition>
void look_out_for(Condition&& holds) {
  const auto end = std::chrono::steady_clock::now() + kLookOut;
  while (!holds() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

int checked(int num_threads) {
  if (num_threads < 1 || num_threads > kMostThreads)
    throw InvalidArgument(message("num_threads: expected 1 to ", kMostThreads, ", got ", num_threads));
  return num_threads;
}

}  // namespace

class ThreadPool::Crew {
 public:
  explicit Crew(int num_threads);
  ~Crew();
  // As parallel_for(). False, with nothing done, while the crew serves another caller.
  bool share(int64_t count, int64_t chunk, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct Loop {
    int64_t count, chunk;
    const std::function<void(int64_t, int64_t)>* body;
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::exception_ptr error;
  };
  void dismiss();
  void work(Loop& loop);
  void run_thread(int index);
  bool has_news(uint64_t seen) const { return stopping_ || generation_ != seen; }
  // Moves threads that were woken on the caller's core to others. The system tends to wake a thread where its waker
  // runs; a loop of a millisecond is over before it would be moved, and both would share one core for good.
  void spread();

  std::unique_ptr<std::atomic<int>[]> last_cpus_;  // per thread, the core of its last loop; -1 before
  std::vector<std::thread> threads_;
  std::mutex callers_;  // one loop at a time
  std::mutex mutex_;    // guards the fields below; those that are atomic are also read without it, by who looks out
  std::condition_variable wake_, done_;
  Loop* loop_ = nullptr;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> busy_{0};
  std::atomic<bool> stopping_{false};
};

ThreadPool::Crew::Crew(int num_threads) : last_cpus_(new std::atomic<int>[num_threads]) {
  threads_.reserve(num_threads);
  for (int i = 0; i < num_threads; ++i) {
    last_cpus_[i] = -1;
    try {
      threads_.emplace_back([this, i] { run_thread(i); });
    } catch (const std::system_error& error) {
      dismiss();
      throw InvalidArgument(message("num_threads: expected at most ", i + 1, ", as many as the system starts now (",
                                    error.code().message(), "), got ", num_threads + 1));
    } catch (...) {
      dismiss();
      throw;
    }
  }
}

ThreadPool::Crew::~Crew() { dismiss(); }

void ThreadPool::Crew::dismiss() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Crew::work(Loop& loop) {
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

void ThreadPool::Crew::run_thread(int index) {
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

void ThreadPool::Crew::spread() {
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

bool ThreadPool::Crew::share(int64_t count, int64_t chunk, const std::function<void(int64_t, int64_t)>& body) {
  std::unique_lock<std::mutex> turn(callers_, std::try_to_lock);
  if (!turn.owns_lock()) return false;
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
  return true;
}

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(checked(num_threads)),
      owner_(getpid()),
      crew_(num_threads > 1 ? std::make_unique<Crew>(num_threads - 1) : nullptr) {}

ThreadPool::~ThreadPool() {
  // Never freed in a forked child: nobody ends the threads there, and destroying what they wait for would wait for
  // them.
  if (getpid() != owner_) (void)crew_.release();
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  // Four chunks a thread even out chunks of unequal cost.
  const int64_t chunk = std::max(grain, (count + 4 * size() - 1) / (4 * size()));
  const bool is_shared = crew_ != nullptr && chunk < count && getpid() == owner_ && crew_->share(count, chunk, body);
  if (!is_shared) body(0, count);
}

void ThreadPool::on_all_threads(int64_t limit, const std::function<void()>& body) {
  if (limit <= 0) return;
  parallel_for(std::min<int64_t>(size(), limit), 1, [&](int64_t, int64_t) { body(); });
}

}  // namespace gld

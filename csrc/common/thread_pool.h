// A fixed set of threads that share the chunks of one loop. The number of threads never changes a result: callers
// give each chunk its own output range.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace gld {

class ThreadPool {
 public:
  // `num_threads` >= 1 counts the calling thread: a pool of 1 starts no thread and runs loops inline.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(begin, end) over disjoint chunks of [0, count), each at least `grain` long but the last. Returns when
  // all are done; rethrows the first exception. While the pool serves another caller's loop, the loop runs inline:
  // batches that share a pool never wait for each other.
  void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

  // Calls body() on as many threads as are free now, at most on `limit`, the caller always among them. Each call must
  // be able to do the whole work alone, since nobody knows how many there are.
  void on_all_threads(int64_t limit, const std::function<void()>& body);

 private:
  struct Loop;
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

}  // namespace gld

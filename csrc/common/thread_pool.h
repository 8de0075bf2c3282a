// A fixed set of threads that share the chunks of one loop. The number of threads never changes a result: callers
// give each chunk its own output range.
//
// Threads do not survive fork(). In a forked child a pool of the parent's runs loops in the calling thread, whatever
// the parent was doing with it, and its end waits for nobody; a pool made there has threads.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace gld {

class ThreadPool {
 public:
  // `num_threads` >= 1 counts the calling thread: a pool of 1 starts no thread and runs loops inline.
  // Throws InvalidArgument where the system starts fewer.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }

  // Calls body(begin, end) over disjoint chunks of [0, count), each at least `grain` long but the last. Returns when
  // all are done; rethrows the first exception. While the pool serves another caller's loop, the loop runs inline:
  // batches that share a pool never wait for each other.
  void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

  // Calls body() on as many threads as are free now, at most on `limit`, the caller always among them. Each call must
  // be able to do the whole work alone, since nobody knows how many there are.
  void on_all_threads(int64_t limit, const std::function<void()>& body);

 private:
  class Crew;
  const int num_threads_;
  const pid_t owner_;
  std::unique_ptr<Crew> crew_;  // the threads, and what they share
};

// The same where there may be no pool: the loop runs inline then.
inline void parallel_for(ThreadPool* pool, int64_t count, int64_t grain,
                         const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  if (pool == nullptr) return body(0, count);
  pool->parallel_for(count, grain, body);
}

}  // namespace gld

// The buffer pool and the thread pool, used by several threads at once.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "arrays.h"
#include "check.h"
#include "common/buffer_pool.h"
#include "common/copy_bytes.h"
#include "common/crc32.h"
#include "common/shuffle.h"

namespace gld::test {
namespace {

void join_all(std::vector<std::thread>& threads) {
  for (std::thread& thread : threads) thread.join();
}

TEST("buffer pool: block sizes hold the request and waste at most a quarter") {
  for (size_t bytes : {size_t{1}, size_t{4096}, size_t{4097}, size_t{5120}, size_t{1} << 20, (size_t{1} << 20) + 1}) {
    const size_t block = BufferPool::block_size(bytes);
    CHECK(block >= bytes);
    CHECK(block <= std::max<size_t>(4096, bytes + bytes / 4 + 1));
  }
}

TEST("buffer pool: blocks are taken in one thread and returned in another") {
  constexpr int kThreads = 4, kRounds = 200;
  std::vector<std::shared_ptr<void>> handed_over(kThreads);
  std::atomic<int> wrong{0};
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        const size_t bytes = 3000 + 7000 * ((round + t) % 5);
        std::shared_ptr<void> mine = BufferPool::global().allocate(bytes);
        std::memset(mine.get(), t, bytes);
        handed_over[t].reset();  // what the main thread put here
        const auto* data = static_cast<const unsigned char*>(mine.get());
        if (!std::all_of(data, data + bytes, [t](unsigned char value) { return value == t; })) ++wrong;
        handed_over[t] = std::move(mine);
      });
    join_all(threads);
    std::rotate(handed_over.begin(), handed_over.begin() + 1, handed_over.end());
  }
  CHECK_EQUAL(wrong.load(), 0);
}

TEST("buffer pool: what is in use comes back, and trimming gives back what is idle") {
  const size_t before = BufferPool::global().stats().in_use_bytes;
  {
    Tensor small = empty({10}, kInt64), large = empty({1 << 19}, kInt64);
    CHECK(BufferPool::global().stats().in_use_bytes >= before + small.nbytes() + large.nbytes());
  }
  CHECK_EQUAL(BufferPool::global().stats().in_use_bytes, before);
  BufferPool::global().trim();
  CHECK_EQUAL(BufferPool::global().stats().idle_bytes, size_t{0});
}

TEST("buffer pool: a larger idle block serves, one that is far too large does not") {
  BufferPool& pool = BufferPool::global();
  pool.trim();
  constexpr size_t kBytes = size_t{5} << 20;
  const void* returned = pool.allocate(kBytes).get();
  const std::shared_ptr<void> smaller = pool.allocate(kBytes - (size_t{2} << 20));
  CHECK(smaller.get() == returned);
  pool.allocate(kBytes);
  const size_t misses = pool.stats().misses;
  const std::shared_ptr<void> tiny = pool.allocate(kBytes / 4);
  CHECK_EQUAL(pool.stats().misses, misses + 1);
}

TEST("buffer pool: an allocation that fails counts as none") {
  BufferPool pool;
  CHECK_THROWS(std::bad_alloc, pool.allocate(size_t{1} << 47));
  CHECK_THROWS(std::bad_alloc, pool.allocate(~size_t{0}));
  CHECK_THROWS(std::bad_alloc, empty({int64_t{1} << 32, int64_t{1} << 32}, kInt64));
  CHECK_EQUAL(pool.stats().in_use_bytes, size_t{0});
  CHECK_EQUAL(pool.stats().misses, size_t{0});
  constexpr size_t kMiB = size_t{1} << 20;
  for (const size_t bytes : {600 * kMiB, 100 * kMiB, 30 * kMiB, 200 * kMiB}) pool.allocate(bytes);
  CHECK(pool.stats().idle_bytes <= 768 * kMiB);  // as much as is kept where never more was in use at once
  CHECK(pool.stats().idle_bytes >= 600 * kMiB);
}

TEST("buffer pool: large new blocks are locked, kept so while idle, and unlocked before they go") {
  static std::vector<void*> locked, unlocked;
  static bool refuses = false;
  const auto lock = [](void* memory, size_t) {
    if (!refuses) locked.push_back(memory);
    return !refuses;
  };
  BufferPool pool;
  constexpr size_t kBytes = size_t{3} << 20;
  pool.allocate(kBytes);
  pool.lock_pages({lock, [](void* memory) { unlocked.push_back(memory); }});
  CHECK_EQUAL(pool.stats().idle_bytes, size_t{0});  // what was idle had no locked pages
  void* const large = pool.allocate(kBytes).get();
  pool.allocate(kBytes / 4);
  CHECK(pool.allocate(kBytes).get() == large);  // again
  CHECK(locked == std::vector<void*>{large});
  CHECK(unlocked.empty());
  pool.trim();
  CHECK(unlocked == locked);
  refuses = true;
  pool.allocate(kBytes);
  pool.set_capacity(0);
  pool.allocate(kBytes);
  CHECK_EQUAL(unlocked.size(), size_t{1});
}

TEST("thread pool: every item once, whatever the number of threads") {
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 7, 1000, 12345}) {
      std::vector<int> seen(count, 0);
      pool.parallel_for(count, 3, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++seen[i];
      });
      CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
    }
  }
}

TEST("thread pool: loops of several callers take turns") {
  ThreadPool pool(3);
  constexpr int kCallers = 4;
  std::vector<int64_t> sums(kCallers, 0);
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c)
    callers.emplace_back([&, c] {
      for (int round = 0; round < 100; ++round) {
        std::atomic<int64_t> sum{0};
        pool.parallel_for(500, 10, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) sum += i;
        });
        sums[c] += sum;
      }
    });
  join_all(callers);
  for (int64_t sum : sums) CHECK_EQUAL(sum, int64_t{100} * 500 * 499 / 2);
}

TEST("thread pool: an exception reaches its caller, and the pool goes on") {
  ThreadPool pool(4);
  std::vector<std::thread> callers;
  std::atomic<int> caught{0}, finished{0};
  for (int c = 0; c < 3; ++c)
    callers.emplace_back([&, c] {
      for (int round = 0; round < 60; ++round) {
        try {
          pool.parallel_for(1000, 1, [&](int64_t begin, int64_t end) {
            if (c != 0 && begin <= 700 && 700 < end) throw InvalidArgument("item 700");
          });
          ++finished;
        } catch (const InvalidArgument&) {
          ++caught;
        }
      }
    });
  join_all(callers);
  CHECK_EQUAL(caught.load(), 120);
  CHECK_EQUAL(finished.load(), 60);
}

TEST("thread pool: ends at once, used or not") {
  for (int round = 0; round < 30; ++round) {
    ThreadPool pool(3);
    if (round % 2 == 0) pool.parallel_for(100, 1, [](int64_t, int64_t) {});
  }
  CHECK_THROWS(InvalidArgument, ThreadPool(0));
}

// Forks; the child's exit code is 0 where `body` gives true. One that hangs is killed by its alarm.
template <typename Body>
int exit_code_of_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    bool is_good = false;
    try {
      is_good = body();
    } catch (...) {
    }
    _exit(is_good ? 0 : 1);
  }
  int status = 0;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int64_t sum_of_numbers(ThreadPool& pool, int64_t count) {
  std::atomic<int64_t> sum{0};
  pool.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sum += i;
  });
  return sum;
}

#ifdef __SANITIZE_THREAD__
constexpr int kThreadsOfChild = 1;  // its runtime cannot start threads after a fork
#else
constexpr int kThreadsOfChild = 3;
#endif

// What a child does with the pool of its parent, and with one of its own.
int child_with(std::unique_ptr<ThreadPool>& pool) {
  return exit_code_of_child([&] {
    const bool goes_on = sum_of_numbers(*pool, 1000) == 499'500;
    pool.reset();
    ThreadPool own(kThreadsOfChild);
    return goes_on && sum_of_numbers(own, 1000) == 499'500;
  });
}

TEST("thread pool: a forked child ends its parent's idle pool, and has loops and pools of its own") {
  auto pool = std::make_unique<ThreadPool>(4);
  CHECK_EQUAL(child_with(pool), 0);  // not yet used
  for (int round = 0; round < 20; ++round) {
    CHECK_EQUAL(sum_of_numbers(*pool, 1000), 499'500);
    CHECK_EQUAL(child_with(pool), 0);  // threads that look out, or sleep
  }
  CHECK_EQUAL(sum_of_numbers(*pool, 1000), 499'500);
}

TEST("thread pool: a forked child ends a pool that is busy in its parent") {
  auto pool = std::make_unique<ThreadPool>(3);
  std::atomic<int> num_inside{0};
  std::atomic<bool> may_end{false};
  std::thread caller([&] {
    pool->on_all_threads(3, [&] {
      ++num_inside;
      while (!may_end) std::this_thread::yield();
    });
  });
  while (num_inside < 3) std::this_thread::yield();
  const int code = child_with(pool);
  may_end = true;
  caller.join();
  CHECK_EQUAL(code, 0);
  CHECK_EQUAL(sum_of_numbers(*pool, 1000), 499'500);
}

TEST("crc32: the known checksum, any size from any place, in one piece or in two, by products and by tables") {
  CHECK(crc32("123456789", 9, 0) == 0xCBF43926);  // the check value of the catalogue of CRCs
  std::vector<uint8_t> bytes(700);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * i * 31 + i);
  for (size_t from = 0; from < 3; ++from)
    for (size_t size = 0; size + from <= bytes.size(); ++size) {
      const uint8_t* data = bytes.data() + from;
      const uint32_t expected = crc32_by_tables(data, size, 0);
      CHECK(crc32(data, size, 0) == expected);
      CHECK(crc32(data + size / 3, size - size / 3, crc32(data, size / 3, 0)) == expected);
    }
}

TEST("ValueWriter: any number of values, to any place, and nothing beside it") {
  for (const int64_t count : {0, 1, 7, 8, 1023, 1024, 1025, 5000, (1 << 17) - 1, 1 << 17, (1 << 17) + 13}) {
    for (int64_t place = 0; place < 8; ++place) {
      std::vector<int64_t> target(static_cast<size_t>(count + 16), -1);
      ValueWriter out(target.data() + place, ValueWriter::streams(count));
      int64_t written = 0;
      for (int64_t piece = 1; written < count; piece = piece * 5 % 1024 + 1) {
        const int64_t size = std::min(piece, count - written);
        int64_t* const to = out.room();
        for (int64_t i = 0; i < size; ++i) to[i] = written + i;
        for (int64_t i = size; i < size + ValueWriter::kSpare; ++i) to[i] = -2;  // in vain
        out.advance(size);
        written += size;
      }
      out.finish();
      int64_t wrong = 0;
      for (int64_t i = 0; i < count + 16; ++i) wrong += target[i] != (i >= place && i < place + count ? i - place : -1);
      CHECK_EQUAL(wrong, 0);
    }
  }
}

TEST("copy_bytes: any size, from any place to any place, and nothing beside it") {
  const size_t large = (size_t{1} << 20) + 77;
  std::vector<char> source(large + 200);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 7 + i / 251);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1000}, large - 100, large})
    for (const size_t from : {0, 1, 63})
      for (const size_t to : {0, 1, 16, 65}) {
        std::vector<char> target(size + 130, 'x');
        copy_bytes(target.data() + to, source.data() + from, size);
        CHECK(std::equal(source.begin() + from, source.begin() + from + size, target.begin() + to));
        CHECK(std::count(target.begin(), target.begin() + to, 'x') == ptrdiff_t(to));
        CHECK(std::count(target.begin() + to + size, target.end(), 'x') == ptrdiff_t(130 - to));
      }
}

TEST("shuffle: one place alone, as a kernel asks for it, is that of the whole order") {
  for (int64_t n :
       {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{31}, Shuffle::kSmall, Shuffle::kSmall + 1, int64_t{5000}}) {
    const Shuffle shuffle(n, 0x9E3779B97F4A7C15ull + n);
    std::vector<int64_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    take_shuffled(shuffle, order.data(), order.data(), n);
    for (int64_t place = 0; place < n; ++place) CHECK_EQUAL(shuffle.at(place), order[place]);
  }
}

}  // namespace
}  // namespace gld::test

// Lent memory, and the shared-memory ring, between threads and between processes.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "channel/loans.h"
#include "channel/shm_ring.h"
#include "check.h"

namespace gld::test {
namespace {

const Poll kNoPoll = [] {};
Deadline soon() { return Deadline(60.0); }  // only to fail instead of hanging

// A message of `words` numbers, all `value`, after the sender's number.
void send(ShmRing& ring, uint64_t sender, uint64_t value, size_t words) {
  const std::vector<uint64_t> body(words, value);
  ring.send({{&sender, sizeof sender}, {body.data(), words * sizeof(uint64_t)}}, soon(), kNoPoll);
}

struct Received {
  uint64_t sender, value;
};

Received receive(ShmRing& ring) {
  const auto message = ring.recv(soon(), kNoPoll);
  const auto* words = static_cast<const uint64_t*>(message->bytes().data);
  const size_t count = message->bytes().size / sizeof(uint64_t);
  CHECK(count >= 2);
  for (size_t i = 1; i < count; ++i) CHECK_EQUAL(words[i], words[1]);
  return {words[0], words[1]};
}

// Each sender's messages arrive once and in order.
void check_all(ShmRing& ring, uint64_t senders, uint64_t each) {
  std::vector<uint64_t> next(senders, 0);
  for (uint64_t i = 0; i < senders * each; ++i) {
    const Received received = receive(ring);
    CHECK(received.sender < senders);
    CHECK_EQUAL(received.value, next[received.sender]++);
  }
}

TEST("loans: each comes back once, from any thread, and the descriptor says so") {
  Loans loans;
  constexpr uint64_t kThreads = 4, kEach = 2000;
  std::vector<std::thread> borrowers;
  for (uint64_t t = 0; t < kThreads; ++t)
    borrowers.emplace_back([&] {
      for (uint64_t i = 0; i < kEach; ++i) loans.give_back(loans.lend());
    });
  std::vector<uint64_t> seen(kThreads * kEach + 1, 0);
  uint64_t back = 0;
  while (back < kThreads * kEach) {
    pollfd readable{loans.fd(), POLLIN, 0};
    CHECK_EQUAL(poll(&readable, 1, 60000), 1);
    for (const uint64_t number : loans.take()) {
      ++seen.at(number);
      ++back;
    }
  }
  for (std::thread& borrower : borrowers) borrower.join();
  for (uint64_t number = 1; number < seen.size(); ++number) CHECK_EQUAL(seen[number], uint64_t{1});
  pollfd readable{loans.fd(), POLLIN, 0};
  CHECK_EQUAL(poll(&readable, 1, 0), 0);
}

TEST("ring: three threads send, one receives") {
  const auto ring = ShmRing::create(64 << 10, 8);
  std::vector<std::thread> senders;
  for (uint64_t s = 0; s < 3; ++s)
    senders.emplace_back([&ring, s] {
      for (uint64_t i = 0; i < 300; ++i) send(*ring, s, i, 1 + (i * 37 + s) % 900);
    });
  check_all(*ring, 3, 300);
  for (std::thread& sender : senders) sender.join();
  CHECK_EQUAL(ring->pending(), uint64_t{0});
}

TEST("ring: messages are released in any order, by any thread") {
  const auto ring = ShmRing::create(64 << 10, 16);
  std::thread sender([&ring] {
    for (uint64_t i = 0; i < 400; ++i) send(*ring, 0, i, 500);
    ring->close();
  });
  std::vector<std::unique_ptr<ShmRing::Message>> held;
  uint64_t count = 0;
  try {
    for (;;) {
      held.push_back(ring->recv(soon(), kNoPoll));
      CHECK_EQUAL(static_cast<const uint64_t*>(held.back()->bytes().data)[1], count++);
      if (held.size() == 4) {
        std::thread([&held] { held[1]->release(), held[3]->release(); }).join();
        held.clear();
      }
    }
  } catch (const ChannelClosed&) {
  }
  sender.join();
  CHECK_EQUAL(count, uint64_t{400});
}

TEST("ring: closing wakes who waits for room and who waits for a message") {
  const auto full = ShmRing::create(4096, 2), none = ShmRing::create(4096, 2);
  std::atomic<int> woken{0};
  std::thread sender([&] {
    try {
      for (uint64_t i = 0; i < 100; ++i) send(*full, 0, i, 100);
    } catch (const ChannelClosed&) {
      ++woken;
    }
  });
  std::thread receiver([&] {
    try {
      receive(*none);
    } catch (const ChannelClosed&) {
      ++woken;
    }
  });
  for (const Deadline deadline = soon(); full->pending() < 2; std::this_thread::yield()) CHECK(!deadline.passed());
  full->close();
  none->close();
  sender.join();
  receiver.join();
  CHECK_EQUAL(woken.load(), 2);
  receive(*full);  // what was sent before can still be received
}

TEST("ring: a child process sends what this one receives") {
  const auto ring = ShmRing::create(64 << 10, 8);
  const std::string path = ring->path();
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    int status = 1;
    try {
      const auto opened = ShmRing::open(path);
      for (uint64_t i = 0; i < 300; ++i) send(*opened, 0, i, 1 + i % 900);
      status = 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    _exit(status);  // no destructors: they belong to the parent
  }
  check_all(*ring, 1, 300);
  int status = 0;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST("ring: what lies there together has its own limit, and one message passes whatever its size") {
  constexpr size_t kSmall = 100'000, kLarge = 600'000;  // words
  const auto ring = ShmRing::create(32 << 20, 64, 3 << 20);
  const auto has_room = [&](size_t words) {
    try {
      const std::vector<uint64_t> body(words, 0);
      ring->send({{body.data(), words * sizeof(uint64_t)}}, Deadline(0.0), kNoPoll);
      return true;
    } catch (const ChannelTimeout&) {
      return false;
    }
  };
  const auto take = [&] { return ring->recv(soon(), kNoPoll); };
  for (int round = 0; round < 50; ++round) {  // several times the capacity passes
    size_t count = 0;
    while (has_room(kSmall)) ++count;
    CHECK(count >= 2);   // of 3: a gap may be left at the end
    auto held = take();  // received is not free
    CHECK(!has_room(kLarge));
    while (ring->pending() > 0) take();
    CHECK(!has_room(kLarge));
    held->release();
  }
  CHECK_EQUAL(ring->committed_bytes(), uint64_t{3} << 20);
  CHECK(has_room(kLarge));
  CHECK(ring->committed_bytes() < kLarge * sizeof(uint64_t) + 64);
  CHECK(!has_room(kSmall));
  take();
  CHECK(has_room(kSmall) && has_room(kSmall));
}

TEST("ring: a message that can never fit, and a deadline that passes") {
  const auto ring = ShmRing::create(4096, 2);
  CHECK_THROWS(MessageTooLarge, send(*ring, 0, 0, 4096));
  CHECK_THROWS(ChannelTimeout, ring->recv(Deadline(0.0), kNoPoll));
  CHECK(ring->try_recv() == nullptr);
  CHECK_THROWS(ChannelError, ShmRing::open("/proc/self/fd/9999"));
}

}  // namespace
}  // namespace gld::test

// Finished batches: what may go ahead of a reader, who waits, what workers announce, and who may ask.
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <system_error>
#include <thread>

#include "channel/memory_file.h"
#include "check.h"
#include "fuzz_batches.h"
#include "rpc/failure.h"
#include "rpc/frame.h"
#include "rpc/msgpack.h"
#include "serving/batch_server.h"
#include "serving/batch_shelf.h"
#include "serving/worker_feed.h"

namespace gld::test {
namespace {

using serving::BatchServer;
using serving::BatchShare;
using serving::BatchShelf;
using serving::Item;
using serving::WorkerFeed;

constexpr auto kLong = std::chrono::seconds(60);  // only ever reached by a hang

// Who waits for batches, and what came.
class Reader : public serving::Receiver {
 public:
  void take(Item item) override {
    std::lock_guard<std::mutex> lock(mutex_);
    item_ = std::move(item);
    changed_.notify_all();
  }
  void fail(const std::string& failure) override {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = failure;
    changed_.notify_all();
  }
  bool has_item() {
    std::lock_guard<std::mutex> lock(mutex_);
    return item_.has_value();
  }
  bool has_failed_with(const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex_);
    return failure_.find(text) != std::string::npos;
  }
  std::string failure() {
    std::unique_lock<std::mutex> lock(mutex_);
    CHECK(changed_.wait_for(lock, kLong, [this] { return !failure_.empty(); }));
    return failure_;
  }
  Item get() {
    std::unique_lock<std::mutex> lock(mutex_);
    CHECK(changed_.wait_for(lock, kLong, [this] { return item_.has_value() || !failure_.empty(); }));
    CHECK(item_.has_value());
    return std::exchange(item_, std::nullopt).value();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Item> item_;
  std::string failure_;
};

Item item_of(uint64_t bytes) {
  Item item;
  item.payload_bytes = bytes;
  return item;
}

BatchShare share_of(int64_t num_batches) {
  BatchShare share;
  share.stop = num_batches;
  share.shown = "all";
  return share;
}

std::shared_ptr<BatchShelf> shelf_with(int64_t num_batches, std::optional<uint64_t> credit, int num_workers = 1) {
  auto shelf = std::make_shared<BatchShelf>("producer", num_workers);
  shelf->begin_run(1, num_batches, share_of(num_batches), credit, item_of(0));
  return shelf;
}

// How many batches of these sizes are sent before the first is read, and after each.
std::vector<size_t> sent_ahead(uint64_t limit, const std::vector<uint64_t>& sizes) {
  const auto count = static_cast<int64_t>(sizes.size());
  const auto shelf = shelf_with(count, limit);
  std::vector<std::shared_ptr<Reader>> readers;
  for (int64_t i = 0; i < count; ++i) {
    readers.push_back(std::make_shared<Reader>());
    shelf->fetch(1, i, 0, readers.back());
  }
  for (int64_t i = count; i-- > 0;) shelf->put(0, 1, i, 1, item_of(sizes[i]));  // in any order
  std::vector<size_t> sent;
  for (int64_t read = 0; read <= count; ++read) {
    shelf->grant(1, read);
    size_t num = 0;
    while (num < sizes.size() && readers[num]->has_item()) ++num;
    for (size_t later = num; later < sizes.size(); ++later) CHECK(!readers[later]->has_item());
    sent.push_back(num);
  }
  return sent;
}

struct Memory {
  explicit Memory(uint64_t bytes) : fd(create_memory_file("test", bytes)), size(bytes) {
    memory = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  }
  ~Memory() {
    munmap(memory, size);
    close(fd);
  }
  std::string path() const { return message("/proc/", getpid(), "/fd/", fd); }
  const int fd;
  const uint64_t size;
  char* memory;
};

// Announces a batch as a worker does: in a slot, or, with offset 0, in the ring.
void announce(ShmRing& ring, int64_t run, int64_t index, int64_t offset, const std::string& payload,
              const std::string& head = "head", int64_t kind = 1, int64_t count = 1) {
  const int64_t header[8] = {
      kind, run, 0, index, offset, static_cast<int64_t>(payload.size()), static_cast<int64_t>(head.size()), count};
  std::string rest = head;
  if (offset == 0) {
    std::string blob("GLDB");
    const uint32_t head_bytes = head.size();
    const uint64_t payload_bytes = payload.size();
    blob.append(reinterpret_cast<const char*>(&head_bytes), 4);
    blob.append(reinterpret_cast<const char*>(&payload_bytes), 8);
    blob += head;
    blob.resize((blob.size() + 63) / 64 * 64);
    rest = blob + payload;
  }
  ring.send({{header, sizeof header}, {rest.data(), rest.size()}}, Deadline(60.0), [] {});
}

std::string bytes_of(const Item& item) { return {static_cast<const char*>(item.payload), item.payload_bytes}; }

class Answer : public rpc::Reply {
 public:
  void send(rpc::OutgoingValue value) override { sent = std::move(value); }
  void fail(const std::string& failure) override { failed = failure; }
  void when_called_off(std::function<void()> call) override { call_off = std::move(call); }
  std::optional<rpc::OutgoingValue> sent;
  std::string failed;
  std::function<void()> call_off;
};

rpc::IncomingValue asked_by(const std::string& client, const std::string& head) {
  return {head, nullptr, 0, nullptr, client};
}

}  // namespace

TEST("shelf: what goes ahead of the reader") {
  using Sizes = std::vector<uint64_t>;
  using Sent = std::vector<size_t>;
  CHECK(sent_ahead(100, Sizes(12, 10)) == Sent({10, 11, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12}));
  CHECK(sent_ahead(100, {60, 60, 60, 60}) == Sent({1, 2, 3, 4, 4}));
  CHECK(sent_ahead(100, {400, 400, 400}) == Sent({1, 2, 3, 3}));  // larger than all that may come: one all the same
  CHECK(sent_ahead(100, {10, 400, 10, 10}) == Sent({1, 2, 4, 4, 4}));  // waits, and others wait for it
  CHECK(sent_ahead(100, {50, 50, 1}) == Sent({2, 3, 3, 3}));           // to the last byte
  CHECK(sent_ahead(100, {0, 0, 100, 0}) == Sent({4, 4, 4, 4, 4}));
}

TEST("shelf: never more than granted, and never stuck") {
  std::vector<uint64_t> sizes;
  for (uint64_t i = 0; i < 60; ++i) sizes.push_back(37 * i % 120 + 1);
  for (const uint64_t limit : {1, 64, 121, 500}) {
    const std::vector<size_t> ahead = sent_ahead(limit, sizes);
    for (size_t read = 0; read < sizes.size(); ++read) {
      const size_t sent = ahead[read];
      CHECK(sent > read);
      const uint64_t bytes = std::accumulate(sizes.begin() + read, sizes.begin() + sent, uint64_t{0});
      CHECK(bytes <= limit || sent == read + 1);
      CHECK(sent == sizes.size() || bytes + sizes[sent] > limit);  // nor less than it could
    }
  }
}

TEST("shelf: who gives up lets the others pass, and who was overtaken comes first") {
  const auto shelf = shelf_with(8, 100);
  std::vector<std::shared_ptr<Reader>> readers;
  std::vector<uint64_t> fetches;
  for (int64_t i = 0; i < 4; ++i) {
    readers.push_back(std::make_shared<Reader>());
    fetches.push_back(shelf->fetch(1, i, 0, readers[i]));
    shelf->put(0, 1, i, 1, item_of(i == 0 || i == 1 ? 80 : 10));
  }
  CHECK(readers[0]->has_item() && !readers[1]->has_item() && !readers[2]->has_item());
  CHECK(!shelf->forget(fetches[0]));
  CHECK(shelf->forget(fetches[1]));
  CHECK(!shelf->forget(fetches[1]));
  CHECK(readers[2]->has_item() && readers[3]->has_item() && !readers[1]->has_item());
  CHECK_EQUAL(shelf->num_ready(), 1u);  // nobody wants it
  const auto later = std::make_shared<Reader>(), earlier = std::make_shared<Reader>();
  shelf->fetch(1, 6, 4, later);
  shelf->put(0, 1, 6, 1, item_of(60));
  CHECK(later->has_item());  // nothing earlier was asked for
  shelf->fetch(1, 5, 4, earlier);
  shelf->put(0, 1, 5, 1, item_of(60));
  CHECK(earlier->has_item());  // what was sent is read after it
  CHECK_EQUAL(shelf->credit().second, 120u);
  shelf->grant(2, 8);  // of another run
  CHECK_EQUAL(shelf->credit().second, 120u);
  shelf->grant(1, 8);
  CHECK_EQUAL(shelf->credit().second, 0u);
}

TEST("shelf: ends of runs, of workers and of the shelf fail who waits, each in its words") {
  const auto shelf = shelf_with(6, 100, 2);
  std::vector<std::shared_ptr<Reader>> readers;
  for (int i = 0; i < 8; ++i) readers.push_back(std::make_shared<Reader>());
  shelf->put(1, 1, 3, 1, item_of(1));
  shelf->fetch(1, 0, 0, readers[0]);
  shelf->fetch(1, 1, 0, readers[1]);
  shelf->fetch(1, 3, std::nullopt, readers[2]);  // who gives no credit waits for nobody
  CHECK(readers[2]->has_item());
  shelf->put(1, 1, 5, 1, item_of(1));
  shelf->fail(1, rpc::pack_error("SamplingWorkerError", "worker 1 died"));
  CHECK(readers[1]->has_failed_with("worker 1 died") && !readers[0]->has_failed_with("died"));
  shelf->fetch(1, 5, 0, readers[3]);  // it is there, but batch 0 comes first
  CHECK(!readers[3]->has_item());
  shelf->put(0, 1, 0, 1, item_of(1));
  CHECK(readers[0]->has_item() && readers[3]->has_item());
  shelf->fetch(1, 1, 0, readers[4]);
  CHECK(readers[4]->has_failed_with("worker 1 died"));
  shelf->fetch(1, 2, 0, readers[5]);
  const auto again = std::make_shared<Reader>();
  shelf->fetch(1, 2, 0, again);
  CHECK(readers[5]->has_failed_with("index: batch 2 was asked for again"));
  CHECK_THROWS(InvalidArgument, shelf->fetch(1, -1, 0, readers[6]));
  CHECK_THROWS(InvalidArgument, shelf->fetch(2, 2, 0, readers[6]));
  CHECK_THROWS(InvalidArgument, shelf->begin_run(1, 6, share_of(6), 100, item_of(0)));
  shelf->fetch(1, 6, 0, readers[6]);  // beyond the last
  CHECK(readers[6]->has_item());
  shelf->begin_run(2, 6, share_of(6), std::nullopt, item_of(0));
  CHECK(again->has_failed_with("producer: run 2 has begun"));
  shelf->put(0, 1, 2, 1, item_of(1));
  CHECK_EQUAL(shelf->num_ready(), 0u);  // of the run before
  CHECK_EQUAL(shelf->announced(0), 0);
  const auto last = std::make_shared<Reader>(), after = std::make_shared<Reader>();
  shelf->fetch(2, 0, 0, last);
  shelf->end(rpc::pack_error("SamplingWorkerError", "it was shut down"));
  shelf->end("another");
  shelf->fetch(2, 2, 0, after);
  CHECK(last->has_failed_with("it was shut down") && after->has_failed_with("it was shut down"));
}

TEST("share: as the schedule's") {
  BatchShare share;
  share.single = {1, 4};
  share.start = 6, share.stop = 30, share.stride = 3;  // 6 9 12 15 18 21 24 27: ten batches in all
  share.size = 2, share.first = 1, share.step = 2, share.begin = 3;
  std::map<int64_t, int64_t> found;
  for (int64_t index = -3; index < 40; ++index)
    if (const auto group = share.group_of(index)) found[index] = *group;
  CHECK(found == (std::map<int64_t, int64_t>{{9, 0}, {18, 1}, {21, 1}}));
  using Place = std::pair<int64_t, int64_t>;
  CHECK(share.place_of(9, 1) == Place(0, 1) && share.place_of(18, 1) == Place(1, 2) &&
        share.place_of(21, 1) == Place(2, 1));
}

TEST("share: what each of its workers makes before a batch") {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    BatchShare share = share_of(3 + random() % 30);
    if (random() % 2) share.single = {0, 2};
    share.start = 3, share.stride = 1 + random() % 3;
    share.size = 1 + random() % 4, share.first = random() % 3, share.step = 1 + random() % 3,
    share.begin = random() % 9;
    const int64_t workers = 1 + random() % 3;
    std::map<int64_t, int64_t> made;                        // by worker
    std::map<int64_t, std::pair<int64_t, int64_t>> groups;  // by group: its first batch's place, and how many it has
    for (int64_t index = 0; index < share.stop; ++index) {
      const auto group = share.group_of(index);
      if (!group) continue;
      const auto [before, with] = share.place_of(index, workers);
      CHECK_EQUAL(before, made[*group % workers]++);
      const auto found = groups.try_emplace(*group, before, with).first->second;
      CHECK_EQUAL(before + with, found.first + found.second);
      CHECK(with >= 1);
    }
    for (const auto& [group, place] : groups) CHECK(place.first + place.second <= made[group % workers]);
  }
}

TEST("feed: slots and what lies in the ring reach who waits, and slots go back when nobody has them") {
  const auto shelf = shelf_with(100, std::nullopt);
  WorkerFeed feed(shelf, 0, 1 << 16, 1 << 16, 8);
  Memory region(1 << 16);
  const auto ring = ShmRing::open(feed.ring_path()), returns = ShmRing::open(feed.returns_path());
  feed.open(region.path(), region.size, 7);
  std::vector<uint64_t> back;
  for (int64_t i = 0; i < 100; ++i) {
    const std::string payload(i % 2 == 0 ? 128 : 64, static_cast<char>('a' + i % 26));
    const int64_t offset = i % 2 == 0 ? 4096 + i * 128 : 0;
    if (offset != 0) std::memcpy(region.memory + offset, payload.data(), payload.size());
    announce(*ring, 1, i, offset, payload, message("head ", i));
    const auto reader = std::make_shared<Reader>();
    shelf->fetch(1, i, std::nullopt, reader);
    Item item = reader->get();
    CHECK_EQUAL(item.head, message("head ", i));
    CHECK_EQUAL(bytes_of(item), payload);
    CHECK_EQUAL(item.offset, static_cast<uint64_t>(offset));
    CHECK_EQUAL(item.region, offset != 0 ? 7u : 0u);
    item = {};
    for (const uint64_t each : serving::take_returned(*returns)) back.push_back(each);
  }
  CHECK_EQUAL(shelf->announced(0), 100);
  CHECK_EQUAL(back.size(), 48u);  // sixteen at a time
  for (size_t i = 0; i < back.size(); ++i) CHECK_EQUAL(back[i], 4096 + 2 * i * 128);
  announce(*ring, 0, 0, 4096, std::string(1 << 10, 'x'));  // of a run that is over: it goes back, and is large: at once
  announce(*ring, 1, 0, 0, "", "", 2);
  CHECK(feed.drain());
  CHECK_EQUAL(serving::take_returned(*returns).size(), 3u);
  CHECK_EQUAL(shelf->num_ready(), 0u);
  feed.close();
  feed.close();
  CHECK(!feed.drain());
  CHECK_THROWS(ChannelClosed, announce(*ring, 1, 0, 0, ""));
}

TEST("feed: slots that come back while their owner looks at none are not lost") {
  constexpr uint64_t kSlots = 30'000;
  const auto ring = ShmRing::create(64 << 10, 256);
  serving::SlotReturns returns(ring, uint64_t{1} << 40);
  uint64_t next = 1, sum = 0, count = 0;
  const auto look = [&] {
    for (const uint64_t offset : serving::take_returned(*ring)) {
      sum += offset;
      ++count;
    }
  };
  for (; next <= kSlots; ++next) returns.give_back(next, 1);
  for (; count < kSlots; ++next) {  // whoever comes back next tells of those that had no room
    look();
    returns.give_back(next, 1);
  }
  look();
  CHECK_EQUAL(sum, count * (count + 1) / 2);  // each once, the first ones
  ring->close();
  for (int i = 0; i < 100; ++i) returns.give_back(1, 1);
}

TEST("feed: closed in the middle of what a worker makes, and freed before what it gave") {
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    const auto shelf = shelf_with(1000, std::nullopt);
    auto feed = std::make_unique<WorkerFeed>(shelf, 0, 1 << 14, 1 << 14, 2);
    Memory region(1 << 16);
    const auto ring = ShmRing::open(feed->ring_path());
    feed->open(region.path(), region.size, 1);
    std::thread worker([&] {
      try {
        for (int64_t i = 0; i < 1000; ++i) announce(*ring, 1, i, i % 3 == 0 ? 4096 : 0, std::string(64, 'x'));
      } catch (const ChannelClosed&) {
      }
    });
    std::vector<Item> kept;
    const int64_t count = std::uniform_int_distribution<int64_t>(0, 40)(random);
    for (int64_t i = 0; i < count; ++i) {
      const auto reader = std::make_shared<Reader>();
      shelf->fetch(1, i, std::nullopt, reader);
      Item item = reader->get();
      if (item.offset != 0) kept.push_back(std::move(item));  // one in the ring would block it
    }
    feed->close();
    worker.join();
    feed.reset();
    for (const Item& item : kept) CHECK_EQUAL(item.payload_bytes, 64u);
  }
}

TEST("feed: a region that is smaller than its worker says, or may become so, is not mapped") {
  const Memory region(1 << 16);
  CHECK_THROWS(std::system_error, serving::Region(region.path(), (1 << 16) + 1));
  FILE* file = std::tmpfile();
  CHECK_EQUAL(ftruncate(fileno(file), 1 << 16), 0);
  CHECK_THROWS(std::system_error, serving::Region(message("/proc/", getpid(), "/fd/", fileno(file)), 1 << 16));
  std::fclose(file);
}

TEST("feed: what a worker cannot have written fails its batches") {
  const auto damaged = [](const std::function<void(ShmRing&)>& write) {
    const auto shelf = shelf_with(4, std::nullopt);
    WorkerFeed feed(shelf, 0, 1 << 16, 1 << 16, 8);
    Memory region(1 << 16);
    feed.open(region.path(), region.size, 1);
    const auto reader = std::make_shared<Reader>();
    shelf->fetch(1, 0, std::nullopt, reader);
    write(*ShmRing::open(feed.ring_path()));
    CHECK(reader->failure().find("what a worker made") != std::string::npos);
  };
  damaged([](ShmRing& ring) { ring.send({{"short", 5}}, Deadline(60.0), [] {}); });
  damaged([](ShmRing& ring) { announce(ring, 1, 0, 4096, "x", "head", 9); });  // of no kind
  for (const int64_t count : {INT64_MIN, int64_t{0}, int64_t{2}, INT64_MAX})
    damaged([count](ShmRing& ring) { announce(ring, 1, 0, 0, "x", "head", 1, count); });
  for (const int64_t index : {int64_t{-1}, int64_t{1}, int64_t{4}, INT64_MAX})  // none of the run, or not the next
    damaged([index](ShmRing& ring) { announce(ring, 1, index, 0, "x"); });
  damaged([](ShmRing& ring) { announce(ring, 2, 0, 0, "x"); });  // of a run that nobody has begun
  damaged([](ShmRing& ring) { announce(ring, 1, 0, (1 << 16) - 32, std::string(64, 'x')); });
  damaged([](ShmRing& ring) { announce(ring, 1, 0, -64, std::string(64, 'x')); });
  damaged([](ShmRing& ring) {
    const int64_t header[8] = {1, 1, 0, 0, 0, 0, 0, 1};
    ring.send({{header, sizeof header}, {"GLDB\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16}}, Deadline(60.0),
              [] {});
  });
}

TEST("server of batches: whose they are, what is none, and who gives up") {
  BatchServer server;
  const auto shelf = shelf_with(4, std::nullopt);
  server.add(5, shelf, "client a", "client a (pid 3)");
  const auto ask = [&](const std::string& client, const std::string& head) {
    auto answer = std::make_shared<Answer>();
    try {
      server.begin(asked_by(client, head), answer);
    } catch (...) {
      answer->fail(rpc::pack_failure(std::current_exception()));
    }
    return answer;
  };
  const auto fetch = [](uint64_t producer, int64_t run, int64_t index) {
    return serving::fetch_query(producer, run, index, std::nullopt);
  };
  auto waiting = ask("client a", fetch(5, 1, 0));
  CHECK(waiting->failed.empty() && !waiting->sent);
  waiting->call_off();
  shelf->put(0, 1, 0, 1, item_of(0));
  CHECK(waiting->failed.empty() && !waiting->sent);
  CHECK(ask("client a", fetch(5, 1, 0))->sent.has_value());
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(contains(ask("client b", fetch(5, 1, 1))->failed, "which is client a (pid 3)'s"));
  CHECK(contains(ask("", fetch(5, 1, 1))->failed, "InvalidArgumentError"));
  CHECK(contains(ask("client a", fetch(6, 1, 1))->failed, "ProducerGoneError"));
  CHECK(contains(ask("client a", fetch(5, 9, 1))->failed, "run: expected the current run 1, got 9"));
  CHECK(contains(ask("client a", fetch(5, 1, -1))->failed, "index: expected one of all, got -1"));
  rpc::msgpack::Writer other;
  other.list(4);
  for (int i = 0; i < 4; ++i) other.text("5");
  for (const std::string& head : {std::string(), std::string("\x93\x01\x01\x01"), std::string("\xff"), other.written(),
                                  std::string("\x94\x05\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x01\xc0", 13)})
    CHECK(contains(ask("client a", head)->failed, "ProtocolError"));
  server.remove(5);
  server.remove(5);
  BatchServer ended;
  ended.add(5, shelf, "client a", "client a (pid 3)");
  ended.end(rpc::pack_error("PeerLostError", "it was shut down"));
  const auto late = std::make_shared<Answer>();
  ended.begin(asked_by("client a", fetch(5, 1, 1)), late);
  CHECK(contains(late->failed, "it was shut down"));
  CHECK(contains(ask("client a", fetch(5, 1, 1))->failed, "producer_id: there is no producer 5 (any more)"));
}

// So many rounds of each of the four; more by GLD_FUZZ_ROUNDS.
TEST("batches: whatever clients, workers and servers do, all are told and all slots come back") {
  const char* wish = std::getenv("GLD_FUZZ_ROUNDS");
  const char* first = std::getenv("GLD_FUZZ_SEED");
  const uint32_t seed = first == nullptr ? 0 : std::strtoul(first, nullptr, 10);
  const uint32_t rounds = wish == nullptr ? 400 : std::strtoul(wish, nullptr, 10);
  for (uint32_t round = 0; round < 4 * rounds; ++round) {
    std::mt19937 random(seed + round);
    std::string bytes(1 + random() % 400, static_cast<char>(round % 4));
    for (size_t i = 1; i < bytes.size(); ++i) bytes[i] = static_cast<char>(random());
    try {
      check_any_batches(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    } catch (const std::exception& error) {
      throw Failure(message("round ", seed + round, ": ", error.what()));
    }
  }
}

}  // namespace gld::test

// Finished batches between workers, servers and clients of which one does what it likes. Built with clang and
// -fsanitize=fuzzer this file is a libFuzzer target (gld_fuzz_batches in CMakeLists.txt); the core's tests call it with
// random choices.
#include "fuzz_batches.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "channel/memory_file.h"
#include "check.h"
#include "rpc/engine.h"
#include "rpc/failure.h"
#include "rpc/msgpack.h"
#include "rpc/pending_answer.h"
#include "serving/batch_server.h"
#include "serving/batch_shelf.h"
#include "serving/worker_feed.h"

namespace gld::test {
namespace {

using rpc::Frame;
using serving::BatchServer;
using serving::BatchShare;
using serving::BatchShelf;
using serving::Item;
using serving::WorkerFeed;
using Clock = rpc::Clock;

constexpr auto kLong = std::chrono::seconds(60);  // only ever reached by a hang
constexpr int64_t kBatches = 12, kWorkers = 2;
const std::string kMeta(
    "\x91\xa7"
    "batches");
constexpr uint64_t kRegion = 7, kRegionBytes = 1 << 14, kLent = 64;

// What the bytes choose; 0 when there are no more.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : at_(data), left_(size) {}
  bool has_more() const { return left_ > 0; }
  uint8_t below(int count) { return static_cast<uint8_t>(byte() % count); }
  bool is_rare() { return below(16) == 1; }
  // Mostly `usual`.
  int64_t number(int64_t usual) {
    static constexpr int64_t kOdd[] = {std::numeric_limits<int64_t>::min(),
                                       std::numeric_limits<int64_t>::max(),
                                       -1,
                                       0,
                                       1,
                                       63,
                                       int64_t{1} << 32,
                                       int64_t{1} << 62};
    switch (below(16)) {
      case 1:
        return kOdd[below(8)];
      case 2:
        return below(32) - 2;
      case 3: {
        int64_t any = 0;
        for (size_t i = 0; i < sizeof any; ++i) any = static_cast<int64_t>(static_cast<uint64_t>(any) << 8 | byte());
        return any;
      }
      default:
        return usual;
    }
  }
  std::string bytes(size_t most) {
    std::string out(below(static_cast<int>(most)), '\0');
    for (char& each : out) each = static_cast<char>(byte());
    return out;
  }
  // Some of its bits are others, now and then.
  std::string damaged(std::string text) {
    while (!text.empty() && is_rare()) text[(byte() << 8 | byte()) % text.size()] ^= static_cast<char>(1 << below(8));
    if (is_rare()) text.resize((byte() << 8 | byte()) % (text.size() + 1));
    return text;
  }

 private:
  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *at_++;
  }
  const uint8_t* at_;
  size_t left_;
};

BatchShare any_share(Choices& choices) {
  BatchShare share;
  for (int64_t index = 0; index < 3; ++index)
    if (choices.below(2)) share.single.push_back(index);
  share.start = 3, share.stop = kBatches, share.stride = 1 + choices.below(3);
  share.size = 1 + choices.below(4), share.first = choices.below(3), share.step = 1 + choices.below(3);
  share.begin = choices.below(4);
  share.shown = "some";
  return share;
}

// The batches of a share that one worker makes, in order.
std::vector<int64_t> made_by(const BatchShare& share, int64_t worker) {
  std::vector<int64_t> out;
  for (int64_t index = 0; index < kBatches; ++index)
    if (const auto group = share.group_of(index); group && *group % kWorkers == worker) out.push_back(index);
  return out;
}

// What of batches' memory is out.
class Slots {
 public:
  Item item(uint64_t bytes, uint64_t offset, size_t head_bytes = 4) {
    Item item;
    item.head.assign(head_bytes, 'h');
    item.payload = memory_;
    item.payload_bytes = bytes;
    item.region = kRegion;
    item.offset = offset;
    item.owner = std::shared_ptr<const void>(memory_, [alive = alive_](const void*) {});
    return item;
  }
  long num_out() const { return alive_.use_count() - 1; }

 private:
  const std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  alignas(64) char memory_[256] = {};
};

// --- a client's queries ----------------------------------------------------------------------------------------------

// Who asked: how often that was ended.
class Ending : public rpc::Reply {
 public:
  void send(rpc::OutgoingValue) override { end(); }
  void fail(const std::string& failure) override {
    CHECK(!failure.empty());
    end();
  }
  void when_called_off(std::function<void()> call) override { call_ = std::move(call); }
  void call_off() {
    if (count_ > 0) return;
    count_ = 1;
    if (call_) call_();
  }
  int count() const { return count_; }

 private:
  void end() {
    ++count_;
    if (count_ > 1) std::terminate();  // where it is called nobody would see an exception
  }
  int count_ = 0;
  std::function<void()> call_;
};

std::string any_query(Choices& choices, int64_t run) {
  std::optional<int64_t> oldest;
  if (choices.below(2)) oldest = choices.number(choices.below(kBatches));
  const int64_t index = choices.number(choices.below(kBatches));
  std::string head = serving::fetch_query(static_cast<uint64_t>(choices.number(1)), choices.number(run), index, oldest);
  return choices.is_rare() ? choices.bytes(24) : choices.damaged(std::move(head));
}

// --- a worker --------------------------------------------------------------------------------------------------------

class Waiting : public serving::Receiver {
 public:
  void take(Item item) override {
    std::lock_guard<std::mutex> lock(mutex_);
    item_ = std::move(item);
    is_over_ = true;
    changed_.notify_all();
  }
  void fail(const std::string&) override {
    std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  bool is_over() {
    std::lock_guard<std::mutex> lock(mutex_);
    return is_over_;
  }
  // Reads all of it, and gives it back.
  void drop() {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto* payload = static_cast<const volatile char*>(item_.payload);
    for (uint64_t i = 0; i < item_.payload_bytes; i += 64) (void)payload[i];
    item_ = {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  Item item_;
};

class Memory {
 public:
  explicit Memory(uint64_t bytes) : fd_(create_memory_file("fuzz", bytes)) {}
  ~Memory() { close(fd_); }
  std::string path() const { return message("/proc/", getpid(), "/fd/", fd_); }

 private:
  const int fd_;
};

std::string announcement(int64_t kind, int64_t run, int64_t index, int64_t offset, int64_t bytes, int64_t head_bytes,
                         int64_t count) {
  const int64_t header[8] = {kind, run, 0, index, offset, bytes, head_bytes, count};
  return {reinterpret_cast<const char*>(header), sizeof header};
}

std::string in_one_piece(Choices& choices) {
  const auto head_bytes = static_cast<uint32_t>(choices.number(4));
  const auto payload_bytes = static_cast<uint64_t>(choices.number(64));
  std::string blob("GLDB");
  blob.append(reinterpret_cast<const char*>(&head_bytes), 4).append(reinterpret_cast<const char*>(&payload_bytes), 8);
  blob.resize(128);
  return blob;
}

bool send(ShmRing& ring, const std::string& text) {
  try {
    ring.send({{text.data(), text.size()}}, Deadline(0.0), [] {});
    return true;
  } catch (const ChannelError&) {  // there is no room, or it is closed or damaged
    return false;
  }
}

// As the worker does, which hears of what is no slot, too.
void look_for_slots(ShmRing& returns) {
  try {
    CHECK(serving::take_returned(returns).size() <= 256 * 512);
  } catch (const ChannelError&) {  // closed, or damaged
  }
}

// Writes over what stands before the data, but for the lock.
void damage(Choices& choices, const std::string& path) {
  constexpr off_t kLock = 36, kBehindLock = 80, kSlots = 256;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  CHECK(fd >= 0);
  const int64_t number = choices.number(choices.below(8));
  off_t at = 4 * choices.below((kSlots + 4 * 32) / 4);
  if (at + static_cast<off_t>(sizeof number) > kLock && at < kBehindLock) at = kBehindLock;
  CHECK_EQUAL(pwrite(fd, &number, sizeof number, at), static_cast<ssize_t>(sizeof number));
  close(fd);
}

// --- frames ----------------------------------------------------------------------------------------------------------

std::string frame_of(rpc::Kind kind, uint64_t request_id, std::string_view meta, std::string_view head = {},
                     uint16_t flags = 0, uint64_t payload_bytes = 0) {
  rpc::Header header;
  header.kind = static_cast<uint8_t>(kind);
  header.flags = flags;
  header.request_id = request_id;
  header.payload_bytes = payload_bytes;
  return rpc::pack_frame(header, meta, head);
}

using Place = std::pair<uint64_t, uint64_t>;

Place any_place(Choices& choices) {
  return {static_cast<uint64_t>(choices.number(3)), static_cast<uint64_t>(choices.number(64 * choices.below(4)))};
}

std::string any_release(Choices& choices) {
  rpc::msgpack::Writer meta;
  const uint8_t count = choices.below(4);
  meta.list(count);
  for (uint8_t i = 0; i < count; ++i) {
    if (choices.is_rare()) {
      meta.integer(choices.number(64));
      continue;
    }
    const auto [number, offset] = any_place(choices);
    meta.list(2);
    meta.natural(number);
    meta.natural(offset);
  }
  return frame_of(rpc::Kind::kRelease, 0, meta.written());
}

// A connection of an engine's, whose other end is a bare socket.
class Wire {
 public:
  Wire() : engine_({1000, 3000, 1 << 20}, {}) {
    int sockets[2];
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets), 0);
    stream = engine_.open(sockets[0]);
    stream->lift_limits(1 << 20, "client", kLent);
    other_ = sockets[1];
  }
  ~Wire() { ::close(other_); }
  const rpc::Queries& queries() { return engine_.queries(); }

  // The other end says this; nothing where the connection is gone.
  void say(const std::string& bytes) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t count = ::send(other_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (count < 0 && errno != EAGAIN) return;
      if (count > 0) done += static_cast<size_t>(count);
      look();
    }
  }
  // Reads what came, at either end.
  void look() {
    for (const rpc::Event& event : engine_.poll()) {
      is_closed_ |= event.what == rpc::Event::What::kClosed;
      if (event.what == rpc::Event::What::kFrame) stream->taken(event.frame.bytes());
      if (event.what == rpc::Event::What::kMalformed || event.what == rpc::Event::What::kMismatch) stream->close();
    }
    char bytes[4096];
    for (ssize_t count; (count = ::recv(other_, bytes, sizeof bytes, 0)) > 0;) heard_.append(bytes, count);
  }
  // The other end says nothing more: what it has heard until the connection was closed.
  std::vector<Frame> end() {
    shutdown(other_, SHUT_WR);
    for (const auto deadline = Clock::now() + kLong; !is_closed_;) {
      CHECK(Clock::now() < deadline);
      pollfd bell{engine_.fd(), POLLIN, 0};
      ::poll(&bell, 1, 20);
      look();
    }
    look();
    engine_.close();
    rpc::FrameDecoder decoder({rpc::kMaxHeadBytes, 1 << 20});
    std::vector<Frame> frames;
    for (size_t done = 0; done < heard_.size();) {
      const iovec room = decoder.room()[0];
      const size_t count = std::min(room.iov_len, heard_.size() - done);
      std::memcpy(room.iov_base, heard_.data() + done, count);
      decoder.filled(count);
      done += count;
      while (std::optional<Frame> frame = decoder.next()) frames.push_back(std::move(*frame));
    }
    return frames;
  }

  std::shared_ptr<rpc::Stream> stream;

 private:
  rpc::Engine engine_;
  int other_ = -1;
  bool is_closed_ = false;
  std::string heard_;
};

}  // namespace

void check_any_fetches(const uint8_t* data, size_t size) {
  Choices choices(data, size);
  Slots slots;
  std::vector<std::shared_ptr<Ending>> asked;
  {
    BatchServer server;
    const auto shelf = std::make_shared<BatchShelf>("producer", kWorkers);
    const auto others = std::make_shared<BatchShelf>("another", 1);
    int64_t run = 0;
    const auto begin_run = [&] {
      std::optional<uint64_t> credit;
      if (choices.below(4)) credit = choices.below(4) * 100;
      shelf->begin_run(++run, kBatches, any_share(choices), credit, slots.item(0, 0));
    };
    begin_run();
    server.add(1, shelf, "client", "client");
    server.add(2, others, "other", "other");
    while (choices.has_more()) {
      switch (choices.below(12)) {
        case 0:
        case 1:
        case 2:
        case 3: {
          const std::string head = any_query(choices, run);
          asked.push_back(std::make_shared<Ending>());
          try {
            server.begin({head, nullptr, 0, nullptr, choices.is_rare() ? "other" : "client"}, asked.back());
          } catch (...) {  // as QueryServer does
            asked.back()->fail(rpc::pack_failure(std::current_exception()));
          }
          break;
        }
        case 4:
          if (!asked.empty()) asked[choices.below(200) % asked.size()]->call_off();
          break;
        case 5:
        case 6:
        case 7:
        case 8:
          shelf->put(choices.below(kWorkers), choices.number(run), choices.number(choices.below(kBatches)), 1,
                     slots.item(choices.below(200), 64));
          break;
        case 9:
          shelf->grant(choices.number(run), choices.number(choices.below(kBatches)));
          break;
        case 10:
          if (choices.is_rare()) shelf->fail(choices.below(kWorkers), rpc::pack_error("SamplingWorkerError", "died"));
          if (choices.is_rare()) begin_run();
          break;
        default:
          if (choices.is_rare()) server.remove(choices.below(3));
          if (choices.is_rare()) server.add(1, shelf, "client", "client");
          if (choices.is_rare()) server.end(rpc::pack_error("PeerLostError", "over"));
      }
    }
    for (const auto& each : asked)
      if (choices.below(2)) each->call_off();
    shelf->end(rpc::pack_error("SamplingWorkerError", "over"));
    shelf->grant(run, std::numeric_limits<int64_t>::max());
    CHECK_EQUAL(shelf->credit().second, 0u);
    for (const auto& each : asked) CHECK_EQUAL(each->count(), 1);
    CHECK_EQUAL(shelf->num_ready(), 0u);
  }
  asked.clear();
  CHECK_EQUAL(slots.num_out(), 0);
}

void check_any_announcements(const uint8_t* data, size_t size) {
  Choices choices(data, size);
  const auto shelf = std::make_shared<BatchShelf>("producer", kWorkers);
  const BatchShare share = any_share(choices);
  const std::vector<int64_t> own = made_by(share, 0);
  shelf->begin_run(5, kBatches, share, std::nullopt, Item{});
  std::vector<std::shared_ptr<Waiting>> waiting;
  for (const int64_t index : own) {
    waiting.push_back(std::make_shared<Waiting>());
    shelf->fetch(5, index, std::nullopt, waiting.back());
  }
  const auto count_waiting = [&] {
    size_t count = 0;
    for (const auto& each : waiting) count += each->is_over() ? 0 : 1;
    return count;
  };
  bool is_sound;
  {
    const Memory region(kRegionBytes);
    WorkerFeed feed(shelf, 0, 1 << 14, 1 << 14, 8);
    const auto ring = ShmRing::open(feed.ring_path()), returns = ShmRing::open(feed.returns_path());
    feed.open(region.path(), kRegionBytes, kRegion);
    while (choices.has_more()) {
      if (choices.is_rare()) damage(choices, choices.below(2) ? feed.ring_path() : feed.returns_path());
      if (choices.is_rare()) send(*returns, choices.bytes(32));
      if (choices.is_rare()) look_for_slots(*returns);
      const auto done = static_cast<size_t>(shelf->announced(0));
      const int64_t usual = done < own.size() ? own[done] : 0;
      const bool is_in_ring = choices.below(2) != 0;
      const int64_t offset = choices.number(is_in_ring ? 0 : 64 * choices.below(200));
      std::string text =
          announcement(choices.number(choices.below(2) ? 1 : 3), choices.number(5), choices.number(usual), offset,
                       choices.number(choices.below(200)), choices.number(4), choices.number(1));
      text += is_in_ring ? in_one_piece(choices) : "head";
      if (!send(*ring, choices.damaged(std::move(text)))) break;
      if (choices.below(4) == 0) feed.drain();
    }
    is_sound = feed.drain();
    if (!is_sound) shelf->fail(0, "as the feed did, unless the ring said that it is closed");
    feed.close();
  }
  // What is sound is gone on with, by another process, from the next batch on.
  const int64_t done = shelf->announced(0);
  CHECK(done >= 0 && done <= static_cast<int64_t>(own.size()));
  if (is_sound) {
    WorkerFeed feed(shelf, 0, 1 << 14, 1 << 14, 8);
    const Memory region(kRegionBytes);
    feed.open(region.path(), kRegionBytes, kRegion + 1);
    const auto ring = ShmRing::open(feed.ring_path());
    for (size_t at = static_cast<size_t>(done); at < own.size(); ++at) {
      CHECK(send(*ring, announcement(1, 5, own[at], 4096, 64, 4, 1) + "head"));
      CHECK(feed.drain());
    }
    CHECK_EQUAL(shelf->announced(0), static_cast<int64_t>(own.size()));
    feed.close();
    CHECK(count_waiting() == 0 || share.size > 1);
  } else {
    CHECK_EQUAL(count_waiting(), 0u);
  }
  for (const auto& each : waiting) each->drop();
}

void check_any_borrower(const uint8_t* data, size_t size) {
  Choices choices(data, size);
  Slots slots;
  std::map<uint64_t, int> open;  // by id: queries that may be answered
  bool is_sound = true;          // so far the frames are
  {
    const auto shelf = std::make_shared<BatchShelf>("producer", kWorkers);
    shelf->begin_run(1, kBatches, any_share(choices), choices.below(2) ? std::optional<uint64_t>(300) : std::nullopt,
                     slots.item(0, 0));
    const auto server = std::make_shared<BatchServer>();
    server->add(1, shelf, "client", "client");
    Wire wire;
    wire.queries().server->serve("batches", server);
    uint64_t last = 0;
    const auto say = [&](const std::string& frame) {
      const std::string damaged = choices.damaged(frame);
      is_sound &= damaged == frame;
      wire.say(damaged);
    };
    while (choices.has_more()) {
      switch (choices.below(12)) {
        case 0:
        case 1:
        case 2:
        case 3: {
          const uint64_t id = rpc::kQueryBit | (choices.is_rare() ? last : ++last);
          const std::string query = any_query(choices, 1);
          ++open[id];
          say(frame_of(rpc::Kind::kQuery, id, kMeta, query));
          break;
        }
        case 4:
          say(frame_of(rpc::Kind::kCancel, rpc::kQueryBit | choices.below(20), "\x90"));
          break;
        case 5:
          say(any_release(choices));
          break;
        case 6:
          choices.below(2) ? wire.stream->lending().accept(kRegion, choices.below(5))
                           : wire.stream->forget_region(kRegion);
          break;
        case 7:
          if (choices.is_rare())
            shelf->fail(choices.below(kWorkers), std::string(choices.is_rare() ? 1 << 17 : 9, 'x'));
          break;
        default:
          shelf->put(choices.below(kWorkers), 1, choices.below(kBatches), 1,
                     slots.item(choices.below(255), 64 * choices.below(4), choices.is_rare() ? 70'000 : 4));
      }
    }
    for (const Frame& frame : wire.end())
      if ((frame.header.request_id & rpc::kQueryBit) != 0) CHECK(--open[frame.header.request_id] >= 0 || !is_sound);
    wire.stream->lending().close();
    shelf->end(rpc::pack_error("SamplingWorkerError", "over"));
  }
  CHECK_EQUAL(slots.num_out(), 0);
}

void check_any_lender(const uint8_t* data, size_t size) {
  Choices choices(data, size);
  std::map<Place, int> lent;
  std::vector<std::shared_ptr<rpc::PendingAnswer>> asked;
  Wire wire;
  const auto client = wire.queries().client;
  const std::string failure = rpc::pack_error("SamplingWorkerError", "died");
  while (choices.has_more()) {
    const uint64_t id = rpc::kQueryBit | (1 + choices.below(static_cast<int>(asked.size()) + 2));
    switch (choices.below(8)) {
      case 0:
      case 1:
        asked.push_back(rpc::PendingAnswer::ask(client, wire.stream, "batches", {"x", {}}, Clock::now() + kLong));
        break;
      case 2:
      case 3: {
        const Place place = any_place(choices);
        const auto flags = static_cast<uint16_t>(choices.number(rpc::kFlagArena));
        const rpc::Kind kind = choices.is_rare() ? rpc::Kind::kError : rpc::Kind::kResponse;
        ++lent[place];
        wire.say(
            frame_of(kind, id, rpc::pack_place(place), "head", flags, flags & 1 ? choices.number(64) & 0xfffff : 0));
        break;
      }
      case 4:
        wire.say(choices.damaged(frame_of(rpc::Kind::kError, id, failure)));
        break;
      case 5: {
        const auto flags = static_cast<uint16_t>(choices.below(2));
        wire.say(frame_of(rpc::Kind::kResponse, id, choices.bytes(12), "head", flags));
        break;
      }
      case 6:
        wire.say(choices.is_rare() ? choices.bytes(64) : any_release(choices));
        break;
      default:
        if (asked.empty()) break;
        rpc::PendingAnswer& one = *asked[choices.below(200) % asked.size()];
        if (choices.below(2)) {
          one.call_off();
        } else if (const auto outcome = one.take(); outcome && choices.below(2)) {
          one.borrowed();
        }
    }
  }
  const std::vector<Frame> heard = [&] {
    if (choices.below(2)) asked.clear();
    return wire.end();
  }();
  for (const auto& each : asked) CHECK(each->wait(Clock::now() + kLong, [] {}));
  asked.clear();
  for (const auto& each : lent) CHECK_EQUAL(wire.stream->lent_here(each.first.first), 0);
  for (const Frame& frame : heard) {
    if (frame.header.kind != static_cast<uint8_t>(rpc::Kind::kRelease)) continue;
    CHECK(--lent[rpc::read_place(rpc::split_head(frame.head).first)] >= 0);
  }
}

void check_any_batches(const uint8_t* data, size_t size) {
  static constexpr void (*kTargets[])(const uint8_t*, size_t) = {check_any_fetches, check_any_announcements,
                                                                 check_any_borrower, check_any_lender};
  if (size > 0) kTargets[data[0] % 4](data + 1, size - 1);
}

}  // namespace gld::test

#ifdef GLD_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gld::test::check_any_batches(data, size);
  return 0;
}
#endif

// The frame decoder, the heartbeat, and the engine over pairs of sockets.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "fuzz_frames.h"
#include "rpc/engine.h"

namespace gld::test {
namespace {

using namespace std::chrono_literals;
using rpc::Event;
using rpc::Frame;
using rpc::FrameDecoder;
using rpc::Heartbeat;
using rpc::Kind;
using rpc::Limits;

constexpr uint8_t kRequest = 5;

std::string make_frame(uint8_t kind, const std::string& head, const std::string& payload, uint64_t request_id = 1,
                       uint16_t flags = 0) {
  std::string frame("GLD1\1", 5);
  const auto append = [&frame](auto value) { frame.append(reinterpret_cast<const char*>(&value), sizeof value); };
  append(kind);
  append(flags);
  append(request_id);
  append(static_cast<uint32_t>(head.size()));
  append(uint32_t{250});
  append(static_cast<uint64_t>(payload.size()));
  frame += head;
  frame.resize((frame.size() + 63) / 64 * 64);
  return flags & rpc::kFlagArena ? frame : frame + payload;
}

std::string numbers(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
  return bytes;
}

std::string payload_of(const Frame& frame) {
  return {static_cast<const char*>(frame.payload.get()), frame.header.inline_bytes()};
}

// --- frames ----------------------------------------------------------------------------------------------------------

void put(FrameDecoder& decoder, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const iovec place = decoder.room()[0];
    const size_t count = std::min(place.iov_len, bytes.size() - done);
    std::memcpy(place.iov_base, bytes.data() + done, count);
    decoder.filled(count);
    done += count;
    if (done < bytes.size()) CHECK(!decoder.next());
  }
}

TEST("frames: a header's fields, a head, a payload") {
  FrameDecoder decoder({rpc::kMaxHeadBytes, 1 << 20});
  for (const size_t size : {size_t{0}, size_t{1}, size_t{5000}, size_t{1} << 20}) {
    const std::string head = numbers(size % 100), payload = numbers(size);
    put(decoder, make_frame(kRequest, head, payload, 77));
    const auto frame = decoder.next();
    CHECK(frame.has_value());
    CHECK_EQUAL(int{frame->header.kind}, int{kRequest});
    CHECK_EQUAL(frame->header.request_id, uint64_t{77});
    CHECK_EQUAL(frame->header.deadline_ms, uint32_t{250});
    CHECK_EQUAL(frame->head, head);
    CHECK(payload_of(*frame) == payload);
    CHECK(!decoder.next());
  }
  put(decoder, make_frame(kRequest, "h", numbers(100'000), 3, rpc::kFlagArena));
  const auto frame = decoder.next();
  CHECK(frame.has_value() && frame->payload == nullptr);
  CHECK_EQUAL(frame->header.payload_bytes, uint64_t{100'000});
}

void decode_header(std::string bytes, size_t at, uint8_t value, const Limits& limits) {
  bytes[at] = static_cast<char>(value);
  rpc::parse_header(reinterpret_cast<const uint8_t*>(bytes.data()), limits);
}

TEST("frames: their bytes are counted by what they are for") {
  const auto place = [](rpc::FrameUse use) { return static_cast<size_t>(use); };
  constexpr uint8_t kRelease = 13;
  rpc::FrameBytes sent;
  // Two whole frames, and one whose payload lies elsewhere.
  const std::string first = make_frame(kRelease, "r", ""), second = make_frame(kRequest, numbers(50), numbers(128));
  const std::string third = make_frame(kRequest, "h", numbers(1000));
  const std::string bytes = first + second + third.substr(0, 64);
  sent.add_frames(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  CHECK_EQUAL(sent.on_socket()[place(rpc::FrameUse::kControl)], uint64_t{64});
  CHECK_EQUAL(sent.on_socket()[place(rpc::FrameUse::kRequest)], uint64_t{128 + 128 + 64 + 1000});

  const std::string answer = make_frame(static_cast<uint8_t>(Kind::kResponse), "h", numbers(300), rpc::kQueryBit | 2);
  const std::string lent = make_frame(static_cast<uint8_t>(Kind::kResponse), "h", numbers(5000), 4, rpc::kFlagArena);
  for (const std::string& frame : {answer, lent})
    sent.add_frames(reinterpret_cast<const uint8_t*>(frame.data()), frame.size());
  CHECK_EQUAL(sent.on_socket()[place(rpc::FrameUse::kQueryAnswer)], uint64_t{64 + 300});
  CHECK_EQUAL(sent.on_socket()[place(rpc::FrameUse::kAnswer)], uint64_t{64});
  CHECK_EQUAL(sent.in_memory()[place(rpc::FrameUse::kAnswer)], uint64_t{5000});
  CHECK_EQUAL(sent.in_memory()[place(rpc::FrameUse::kQueryAnswer)], uint64_t{0});
  // What is no frame, as in tests of the engine, ends the walk.
  const std::string noise = numbers(4096);
  sent.add_frames(reinterpret_cast<const uint8_t*>(noise.data()), noise.size());
}

TEST("frames: malformed headers") {
  const Limits known{rpc::kMaxHeadBytes, 1 << 20};
  const std::string good = make_frame(kRequest, numbers(10), "");
  decode_header(good, 0, 'G', known);
  CHECK_THROWS(rpc::ProtocolError, decode_header(good, 0, 'H', known));
  CHECK_THROWS(rpc::VersionMismatch, decode_header(good, 4, 2, known));
  for (const int kind : {0, 16, 37, 69, 255}) CHECK_THROWS(rpc::ProtocolError, decode_header(good, 5, kind, known));
  decode_header(good, 17, 0xff, known);
  CHECK_THROWS(rpc::ProtocolError, decode_header(good, 18, 1, known));  // a head of 65 546 bytes
  CHECK_THROWS(rpc::ProtocolError, decode_header(good, 17, 4, Limits{}));
  CHECK_THROWS(rpc::ProtocolError, decode_header(good, 24, 1, Limits{}));
  CHECK_THROWS(rpc::ProtocolError, decode_header(good, 31, 0x80, known));
  std::string refusal = make_frame(static_cast<uint8_t>(Kind::kError), "why", "", 0);
  decode_header(refusal, 4, 9, Limits{});  // readable whatever the version
}

TEST("frames: arbitrary bytes") {
  std::mt19937 random(20261121);
  std::string seeds[] = {make_frame(kRequest, numbers(40), numbers(9000)) + make_frame(10, "\1\0\x90", ""),
                         make_frame(1, numbers(900), "") + make_frame(7, numbers(5), "", 0),
                         make_frame(6, numbers(60'000), numbers(70'000)), numbers(200)};
  for (int round = 0; round < 6000; ++round) {
    std::string bytes(2, '\0');
    bytes[0] = static_cast<char>(random());
    bytes[1] = static_cast<char>(random());
    for (unsigned i = 0; i <= random() % 3; ++i) bytes += seeds[random() % 4];
    for (unsigned change = random() % 4; change > 0; --change) {
      // Mostly the first header, where one bit matters.
      const size_t at = random() % 2 ? 2 + random() % rpc::kHeaderBytes : random() % bytes.size();
      bytes[at] = static_cast<char>(random() % 4 ? bytes[at] ^ (1 << random() % 8) : random());
    }
    if (random() % 3 == 0) bytes.resize(random() % bytes.size());
    check_any_bytes(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
}

// --- the heartbeat ---------------------------------------------------------------------------------------------------

TEST("heartbeat: asks after silence, gives up after more, forgives its own absence") {
  const Heartbeat::Time start{1000s};
  Heartbeat heartbeat(1s, 3s, start);
  CHECK(!heartbeat.check(start + 900ms, start, start, 0).ping);
  CHECK(heartbeat.check(start + 1100ms, start, start, 0).ping);
  CHECK(!heartbeat.check(start + 1900ms, start, start, 0).ping);  // asked already
  CHECK(heartbeat.check(start + 2200ms, start, start, 0).ping);
  CHECK(!heartbeat.check(start + 2500ms, start + 2400ms, start, 0).ping);
  CHECK(heartbeat.check(start + 5300ms, start + 2400ms, start, 0).dead.empty());
  CHECK_EQUAL(heartbeat.check(start + 5500ms, start + 2400ms, start, 0).dead, "heartbeat timeout: silent for 3.1 s");
  heartbeat.forgive(start + 6s);
  CHECK(heartbeat.check(start + 8s, start + 2400ms, start, 0).dead.empty());
}

TEST("heartbeat: a peer that takes bytes lives, one that takes none is given up") {
  const Heartbeat::Time start{1000s};
  Heartbeat heartbeat(1s, 3s, start);
  heartbeat.check(start + 2s, start, start + 2s, 5000);
  CHECK(heartbeat.check(start + 4s, start, start + 3900ms, 5000).dead.empty());
  CHECK(!heartbeat.check(start + 8s, start, start + 3900ms, 5000).dead.empty());
  Heartbeat stuck(1s, 3s, start);
  for (int i = 1; i <= 30; ++i) CHECK(stuck.check(start + i * 1s, start + i * 1s, start, 5000).dead.empty());
  CHECK_EQUAL(stuck.check(start + 31s, start + 31s, start, 5000).dead, "it took no data for 30 s");
}

// --- the engine ------------------------------------------------------------------------------------------------------

// A connected pair of unix sockets, the first for an engine.
std::pair<int, int> connect() {
  int sockets[2];
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  fcntl(sockets[0], F_SETFL, O_NONBLOCK);
  return {sockets[0], sockets[1]};
}

// No heartbeat asks, and no tick comes to the rescue.
const rpc::EngineSettings kNoTicks{1000, 3000, 1 << 30};

// A stream of an engine and the bare socket at its other end.
struct Pair {
  explicit Pair(rpc::EngineSettings settings = {}, std::pair<int, int> sockets = connect())
      : engine(settings), stream(engine.open(sockets.first)), other(sockets.second) {}
  ~Pair() { ::close(other); }

  void write(const std::string& bytes) {
    CHECK_EQUAL(::write(other, bytes.data(), bytes.size()), ssize_t(bytes.size()));
  }
  std::string read(size_t count) {
    std::string bytes(count, '\0');
    for (size_t done = 0; done < count;) {
      const ssize_t got = recv(other, bytes.data() + done, count - done, 0);
      CHECK(got > 0);
      done += static_cast<size_t>(got);
    }
    return bytes;
  }
  // The next event; fails instead of hanging.
  Event next() {
    while (events.empty()) {
      pollfd bell{engine.fd(), POLLIN, 0};
      CHECK_EQUAL(::poll(&bell, 1, 60'000), 1);
      for (Event& event : engine.poll()) events.push_back(std::move(event));
    }
    Event event = std::move(events.front());
    events.pop_front();
    return event;
  }
  Event expect(Event::What what) {
    Event event = next();
    CHECK_EQUAL(int(event.what), int(what));
    return event;
  }
  // As the loop does after a handshake.
  void meet() {
    write(make_frame(1, "hello", ""));
    const Event hello = expect(Event::What::kFrame);
    stream->lift_limits();
    stream->taken(hello.frame.bytes());
    write(make_frame(kRequest, "first", ""));  // when it comes, the engine has seen that
    stream->taken(expect(Event::What::kFrame).frame.bytes());
  }

  rpc::Engine engine;
  std::shared_ptr<rpc::Stream> stream;
  int other;
  std::deque<Event> events;
};

std::vector<iovec> parts_of(std::string& bytes) { return {{bytes.data(), bytes.size()}}; }

TEST("engine: limits until the peer is known, one frame at a time") {
  Pair pair;
  pair.write(make_frame(1, "hello", "") + make_frame(kRequest, "head", numbers(300'000)).substr(0, 1000));
  const Event hello = pair.expect(Event::What::kFrame);
  CHECK_EQUAL(hello.frame.head, "hello");
  pair.stream->lift_limits();
  pair.stream->taken(hello.frame.bytes());
  pair.write(make_frame(kRequest, "head", numbers(300'000)).substr(1000, 100'000));
  std::thread writer([&] { pair.write(make_frame(kRequest, "head", numbers(300'000)).substr(101'000)); });
  const Event request = pair.expect(Event::What::kFrame);
  writer.join();
  CHECK(payload_of(request.frame) == numbers(300'000));

  Pair stranger;
  stranger.write(make_frame(kRequest, "head", numbers(300)));
  const Event refused = stranger.expect(Event::What::kMalformed);
  CHECK_EQUAL(refused.text, "payload: expected at most 0 bytes, got 300");
  stranger.stream->close();
  CHECK_EQUAL(stranger.expect(Event::What::kClosed).text, "");
}

TEST("engine: small messages go at once, large ones with their memory borrowed, in order") {
  Pair pair(kNoTicks);
  pair.meet();
  std::string small = numbers(100), large = numbers(5'000'000), last = "last";
  CHECK(pair.stream->send(1, parts_of(small)));
  CHECK(!pair.stream->send(2, parts_of(large)));
  CHECK(!pair.stream->send(3, parts_of(last)));  // behind the large one
  CHECK(pair.read(small.size() + large.size() + last.size()) == small + large + last);
  CHECK_EQUAL(pair.expect(Event::What::kSent).token, uint64_t{2});
  CHECK_EQUAL(pair.expect(Event::What::kSent).token, uint64_t{3});
  CHECK_EQUAL(pair.stream->out_bytes(), size_t{0});
}

TEST("engine: a peer that sends more than is taken has to wait") {
  Pair pair;
  pair.meet();
  const std::string frame = make_frame(kRequest, "head", numbers(8 << 20));
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i) pair.write(frame);
  });
  std::deque<size_t> untaken;
  for (int received = 0; received < 20; ++received) {
    untaken.push_back(pair.expect(Event::What::kFrame).frame.bytes());
    CHECK(untaken.size() + pair.events.size() <= 8);  // the credit is 64 MiB
    if (untaken.size() < 8) continue;
    pair.stream->taken(untaken.front());
    untaken.pop_front();
  }
  writer.join();
}

// A connected pair of TCP sockets.
std::pair<int, int> connect_over_tcp() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  CHECK(bind(listener, where, size) == 0 && listen(listener, 1) == 0 && getsockname(listener, where, &size) == 0);
  const int connecting = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK_EQUAL(connect(connecting, where, size), 0);
  const int accepted = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  CHECK(accepted >= 0);
  ::close(listener);
  return {accepted, connecting};
}

TEST("engine: over TCP nothing stays behind in the socket, after large payloads too") {
  Pair pair(kNoTicks, connect_over_tcp());
  pair.meet();
  for (const size_t size : {10u, 300'000u, 262'144u, 10u, 9'000'000u, 524'288u, 40'000'000u}) {
    const std::string bytes = make_frame(kRequest, "large", numbers(size)) + make_frame(kRequest, "small", "");
    std::thread writer([&] {
      for (size_t done = 0; done < bytes.size(); done += 100'000) pair.write(bytes.substr(done, 100'000));
    });
    CHECK(payload_of(pair.expect(Event::What::kFrame).frame) == numbers(size));
    CHECK_EQUAL(pair.expect(Event::What::kFrame).frame.head, "small");
    writer.join();
    pair.stream->taken(size + 1000);
  }
}

TEST("answers: what a thread has got is its own until it says that it is done") {
  rpc::Answers answers;
  answers.expect(7);
  Frame frame;
  frame.header.request_id = 7;
  CHECK(answers.offer(frame));
  CHECK(!answers.release(7));
  CHECK(answers.wait(7, rpc::Clock::now(), [] {}).has_value());
  CHECK(!answers.release(7));  // the connection's end, told while that thread handles its answer
  Frame again;
  again.header.request_id = 7;
  CHECK(!answers.offer(again));
  CHECK_EQUAL(answers.count(), size_t{0});
  CHECK(!answers.take(7).has_value());
  CHECK(answers.release(7));
}

// A thread that waits for an answer. It can be stopped where it looks for signals, or told to give up there.
class Waiter {
 public:
  Waiter(rpc::Stream& stream, uint64_t request_id) {
    struct sigaction nothing{};
    nothing.sa_handler = [](int) {};
    sigaction(SIGUSR1, &nothing, nullptr);  // it ends system calls, and no more
    stream.expect_answer(request_id);
    thread_ = std::thread([this, &stream, request_id] {
      try {
        answer = stream.await_answer(request_id, rpc::Clock::now() + 1h, [this] { look(); });
      } catch (const std::runtime_error&) {
      }
      is_done_ = true;
    });
  }
  ~Waiter() {
    is_held_ = false;
    gives_up_ = true;
    while (!is_done_) interrupt();
    thread_.join();
  }

  // Until it waits, asleep.
  void wait_until_it_looks() {
    const int before = num_looks_;
    while (num_looks_ == before && !is_done_) interrupt();
  }
  void hold() {
    is_held_ = true;
    wait_until_it_looks();
  }
  void let_go() { is_held_ = false; }
  // Fails instead of hanging.
  bool ends() {
    for (const auto end = rpc::Clock::now() + 60s; !is_done_ && rpc::Clock::now() < end;) std::this_thread::yield();
    return is_done_;
  }

  std::optional<Frame> answer;

 private:
  void look() {
    ++num_looks_;
    while (is_held_) std::this_thread::yield();
    if (gives_up_) throw std::runtime_error("told to");
  }
  void interrupt() {
    pthread_kill(thread_.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }

  std::atomic<int> num_looks_{0};
  std::atomic<bool> is_held_{false}, gives_up_{false}, is_done_{false};
  std::thread thread_;
};

TEST("engine: a thread that lost its turn and ends late takes nothing from the next that waits") {
  constexpr auto kAnswer = static_cast<uint8_t>(Kind::kResponse);
  Pair pair({0.02, 1000, 1 << 30});
  pair.meet();
  Waiter first(*pair.stream, 11);
  first.hold();
  // The engine's thread takes the turn for a large payload.
  const std::string large = make_frame(kRequest, "large", numbers(2'000'000));
  std::thread writer([&] { pair.write(large); });
  pair.stream->taken(pair.expect(Event::What::kFrame).frame.bytes());
  writer.join();
  // A ping is four ticks. Two after the payload the turn is the loop's again.
  for (char bytes[64]; recv(pair.other, bytes, sizeof bytes, MSG_DONTWAIT) == 64;) continue;
  for (int i = 0; i < 3; ++i) pair.read(64);
  pair.write(make_frame(kAnswer, "first", "", 11) + make_frame(kRequest, "behind it", "", 12));
  pair.stream->taken(pair.expect(Event::What::kFrame).frame.bytes());  // the answer is handed over by now
  Waiter second(*pair.stream, 13);
  second.wait_until_it_looks();
  first.let_go();
  CHECK(first.ends());
  CHECK(first.answer.has_value());
  CHECK(pair.stream->release_answer(13));
  CHECK(second.ends());
  CHECK(!second.answer.has_value());
}

TEST("engine: answers pings by itself, and tells who hung up") {
  Pair pair;
  pair.meet();
  pair.write(make_frame(static_cast<uint8_t>(Kind::kPing), std::string("\1\0\x90", 3), "", 0));
  const std::string pong = pair.read(64);
  CHECK_EQUAL(int(pong[5]), int(Kind::kPong));
  shutdown(pair.other, SHUT_RDWR);
  CHECK_EQUAL(pair.expect(Event::What::kClosed).text, "connection closed");
}

TEST("engine: a silent peer is asked, and given up") {
  Pair pair({0.05, 0.4, 1 << 20});
  pair.meet();
  CHECK_EQUAL(int(pair.read(64)[5]), int(Kind::kPing));
  const std::string why = pair.expect(Event::What::kClosed).text;
  CHECK_EQUAL(why.substr(0, 17), "heartbeat timeout");
}

const auto kNoSignal = [] {};

TEST("engine: an answer goes to the thread that waits for it, in order with what came before") {
  Pair pair;
  pair.meet();
  const auto soon = [] { return rpc::Clock::now() + 60s; };
  const std::string answer = make_frame(6, "answer", numbers(1000), 5);
  pair.stream->expect_answer(5);
  pair.write(answer);
  const std::optional<Frame> handed = pair.stream->await_answer(5, soon(), kNoSignal);
  CHECK(handed.has_value() && payload_of(*handed) == numbers(1000));
  pair.write(answer);  // nobody waits any more
  CHECK_EQUAL(pair.expect(Event::What::kFrame).frame.head, "answer");

  pair.stream->expect_answer(7);  // that frame is untaken: the next ones are told, though somebody waits
  pair.write(make_frame(6, "behind", "", 7));
  Event behind = pair.expect(Event::What::kFrame);
  CHECK_EQUAL(behind.frame.head, "behind");
  CHECK(pair.stream->release_answer(7));
  CHECK(!pair.stream->await_answer(7, soon(), kNoSignal));
  pair.stream->taken(1 << 20);

  const std::string lent("\4\0\x91\x92\1\2", 6), in_arena("\2\0\x91\1", 4);  // [[1, 2]] and [1]
  pair.stream->expect_answer(13);
  pair.write(make_frame(6, lent, numbers(100), 13, rpc::kFlagArena));
  CHECK_EQUAL(pair.stream->await_answer(13, soon(), kNoSignal)->head, lent);

  pair.stream->expect_answer(9);  // in the arena, and a request of the same number: not for a waiting thread
  pair.write(make_frame(6, in_arena, numbers(100), 9, rpc::kFlagArena) + make_frame(kRequest, "request", "", 9));
  CHECK_EQUAL(pair.expect(Event::What::kFrame).frame.head, in_arena);
  CHECK_EQUAL(pair.expect(Event::What::kFrame).frame.head, "request");
  CHECK(!pair.stream->await_answer(9, rpc::Clock::now() + 1ms, kNoSignal));
  pair.stream->taken(1 << 20);

  pair.stream->expect_answer(11);
  pair.write(make_frame(static_cast<uint8_t>(Kind::kError), "error", "", 11));
  CHECK_EQUAL(pair.stream->await_answer(11, soon(), kNoSignal)->head, "error");
}

TEST("engine: an answer is lost neither when its peer hangs up nor when a signal ends the wait") {
  Pair pair;
  pair.meet();
  pair.stream->expect_answer(5);
  pair.write(make_frame(6, "first", "", 5));
  pair.stream->expect_answer(7);
  const auto interrupt = [&] {  // comes when the deadline of the wait below has passed without an answer
    pair.write(make_frame(6, "second", "", 7) +
               make_frame(static_cast<uint8_t>(Kind::kPing), std::string("\1\0\x90", 3), "", 0));
    pair.read(64);  // the PONG: what came before it has been handed over
    throw std::runtime_error("interrupted");
  };
  const auto soon = rpc::Clock::now() + 20ms;
  CHECK_THROWS(std::runtime_error, pair.stream->await_answer(7, soon, interrupt));
  CHECK_EQUAL(pair.expect(Event::What::kFrame).frame.head, "second");
  shutdown(pair.other, SHUT_RDWR);
  pair.expect(Event::What::kClosed);
  CHECK(!pair.stream->release_answer(5));  // it has its answer
  CHECK_EQUAL(pair.stream->await_answer(5, soon, kNoSignal)->head, "first");
}

TEST("engine: a thread that waits reads what comes meanwhile, until it is let go") {
  Pair pair(kNoTicks);
  pair.meet();
  const auto late = rpc::Clock::now() + 60s;
  pair.stream->expect_answer(5);
  std::optional<Frame> handed;
  std::thread waiter([&] { handed = pair.stream->await_answer(5, late, kNoSignal); });
  pair.write(make_frame(kRequest, "request", "", 2));
  const Event request = pair.expect(Event::What::kFrame);
  CHECK_EQUAL(request.frame.head, "request");
  pair.stream->taken(request.frame.bytes());
  const std::string large = make_frame(6, "large", numbers(9'000'000), 5);
  std::thread writer([&] { pair.write(large); });
  waiter.join();
  writer.join();
  CHECK(handed.has_value() && payload_of(*handed) == numbers(9'000'000));

  pair.stream->expect_answer(7);
  std::thread idle([&] { handed = pair.stream->await_answer(7, late, kNoSignal); });
  CHECK(pair.stream->release_answer(7));
  idle.join();
  CHECK(!handed.has_value());
  pair.write(make_frame(kRequest, "next", "", 4));
  CHECK_EQUAL(pair.expect(Event::What::kFrame).frame.head, "next");
}

TEST("engine: closing ends the wait of a thread that reads, once it is let go") {
  for (const bool by_peer : {false, true}) {
    Pair pair(kNoTicks);
    pair.meet();
    pair.stream->expect_answer(5);
    std::optional<Frame> handed;
    std::thread waiter([&] { handed = pair.stream->await_answer(5, rpc::Clock::now() + 60s, kNoSignal); });
    pair.write(make_frame(kRequest, "request", "", 2));
    pair.expect(Event::What::kFrame);
    if (by_peer) {
      shutdown(pair.other, SHUT_RDWR);
    } else {
      pair.stream->close();
    }
    CHECK_EQUAL(pair.expect(Event::What::kClosed).text, by_peer ? "connection closed" : "");
    CHECK(pair.stream->release_answer(5));
    waiter.join();
    CHECK(!handed.has_value());
    char byte;
    CHECK_EQUAL(recv(pair.other, &byte, 1, 0), ssize_t{0});  // the socket is closed at this end
  }
}

TEST("engine: many threads send and wait over one stream") {
  Pair pair;
  pair.meet();
  constexpr int kThreads = 4, kRequests = 300;
  std::thread peer([socket = pair.other] {  // answers requests, each of 64 bytes
    std::string request(64, '\0');
    for (int i = 0; i < kThreads * kRequests; ++i) {
      if (recv(socket, request.data(), 64, MSG_WAITALL) != 64) return;
      uint64_t id;
      std::memcpy(&id, request.data() + 8, sizeof id);
      const std::string answer = make_frame(6, "answer", numbers(id % 3000), id);
      if (::write(socket, answer.data(), answer.size()) != ssize_t(answer.size())) return;
    }
  });
  std::vector<std::thread> threads;
  std::deque<std::string> requests[kThreads];  // borrowed where others were sending
  std::atomic<int> answered{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&pair, &requests, &answered, t] {
      for (int i = 0; i < kRequests; ++i) {
        const auto id = static_cast<uint64_t>(i * kThreads + t) * 2 + 1;
        requests[t].push_back(make_frame(kRequest, "request", "", id));
        pair.stream->expect_answer(id);
        pair.stream->send(id, parts_of(requests[t].back()));
        const auto frame = pair.stream->await_answer(id, rpc::Clock::now() + 60s, kNoSignal);
        answered += frame && payload_of(*frame) == numbers(id % 3000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  peer.join();
  CHECK_EQUAL(answered.load(), kThreads * kRequests);
}

TEST("engine: closing gives everything back, from the stream or from the engine") {
  std::string large = numbers(20'000'000);
  for (const bool by_engine : {false, true}) {
    Pair pair;
    pair.meet();
    CHECK(!pair.stream->send(7, parts_of(large)));
    if (by_engine) {
      pair.engine.close();
      CHECK_THROWS(InvalidArgument, pair.engine.open(-1));
    } else {
      pair.stream->close();
    }
    CHECK_EQUAL(pair.expect(Event::What::kClosed).text, "");
    CHECK(!pair.stream->send(8, parts_of(large)));  // goes nowhere, and the memory is not touched
    CHECK_EQUAL(pair.stream->out_bytes(), size_t{0});
  }
}

TEST("engine: what was sent before closing goes as far as the socket takes it at once") {
  std::string queued = numbers(70'000);  // more than a sender writes itself
  for (int i = 0; i < 200; ++i) {
    Pair pair(kNoTicks);
    CHECK(!pair.stream->send(1, parts_of(queued)));
    pair.stream->close();
    CHECK(pair.read(queued.size()) == queued);
    CHECK_EQUAL(pair.expect(Event::What::kSent).token, uint64_t{1});
    pair.expect(Event::What::kClosed);
  }
}

TEST("engine: an event tells once that little enough waits to be sent, whoever sent it") {
  Pair pair(kNoTicks);
  pair.meet();
  const auto large = std::make_shared<const std::string>(numbers(5'000'000));
  pair.stream->send_owned("", {{large->data(), large->size(), large, nullptr}});
  CHECK(pair.stream->out_bytes() > size_t{3} << 20);
  pair.stream->tell_when_below(size_t{3} << 20);
  pair.read(3'000'000);
  pair.expect(Event::What::kRoom);
  CHECK(pair.stream->out_bytes() <= size_t{3} << 20);
  pair.read(2'000'000);
  pair.stream->tell_when_below(0);  // at once where it is so
  pair.expect(Event::What::kRoom);
  pair.stream->close();
  pair.expect(Event::What::kClosed);  // and nothing else before it
}

TEST("engine: many streams under load from several sides") {
  rpc::Engine engine({});
  constexpr int kStreams = 8, kFrames = 200;
  std::map<uint64_t, int> seen;
  std::vector<std::thread> peers;
  std::map<uint64_t, std::shared_ptr<rpc::Stream>> streams;
  for (int i = 0; i < kStreams; ++i) {
    const std::pair<int, int> sockets = connect();
    const auto stream = engine.open(sockets.first);
    stream->lift_limits();
    streams[stream->id] = stream;
    peers.emplace_back([socket = sockets.second, i] {  // sends frames, reads as many bytes back
      std::string answer;
      for (int f = 0; f < kFrames; ++f) {
        const std::string frame = make_frame(kRequest, numbers(10), numbers((f * 997 + i * 131) % 20'000));
        if (::write(socket, frame.data(), frame.size()) != ssize_t(frame.size())) break;
        answer.resize(64);
        if (recv(socket, answer.data(), 64, MSG_WAITALL) != 64) break;
      }
      ::close(socket);
    });
  }
  std::string answer = make_frame(6, "", "");
  for (int closed = 0; closed < kStreams;) {
    pollfd bell{engine.fd(), POLLIN, 0};
    CHECK_EQUAL(::poll(&bell, 1, 60'000), 1);
    for (const Event& event : engine.poll()) {
      if (event.what == Event::What::kClosed) ++closed;
      if (event.what != Event::What::kFrame) continue;
      CHECK(payload_of(event.frame) == numbers(event.frame.header.payload_bytes));
      ++seen[event.stream];
      streams[event.stream]->send(1, parts_of(answer));
      streams[event.stream]->taken(event.frame.bytes());
    }
  }
  for (std::thread& peer : peers) peer.join();
  CHECK_EQUAL(seen.size(), size_t{kStreams});
  for (const auto& entry : seen) CHECK_EQUAL(entry.second, kFrames);
}

}  // namespace
}  // namespace gld::test

// Queries over streams: who answers, who asks, and who drives exchanges.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "common/error.h"
#include "exchange/queries.h"
#include "exchange/runner.h"
#include "exchange/single_round.h"
#include "rpc/engine.h"
#include "rpc/failure.h"
#include "rpc/lending.h"
#include "rpc/pending_answer.h"

namespace gld {
namespace {

using namespace std::chrono_literals;
using rpc::IncomingValue;
using rpc::OutgoingValue;
using rpc::QueryOutcome;
using What = rpc::QueryOutcome::What;

constexpr auto kLong = 60s;  // only ever reached by a hang

OutgoingValue value_of(std::string head, const std::string& payload = {}) {
  OutgoingValue value{std::move(head), {}};
  if (payload.empty()) return value;
  const auto bytes = std::make_shared<const std::string>(payload);
  value.segments.push_back({bytes->data(), bytes->size(), bytes, nullptr});
  return value;
}

// Answers with what it was asked; waits where the head says so, raises where it says that.
class Echo : public rpc::PromptAnswerer {
 public:
  OutgoingValue answer(const IncomingValue& query) override {
    const std::string head(query.head);
    {
      std::unique_lock<std::mutex> lock(mutex_);
      heads_.push_back(head);
      changed_.notify_all();
      if (head == "wait") changed_.wait_for(lock, kLong, [this] { return is_open_; });
    }
    if (head == "unknown id") throw UnknownId("ids[0]: no node 7");
    if (head == "large") return value_of(head, std::string(9'000'000, 'x'));
    if (head == "made") return made_value();
    return value_of(head, {static_cast<const char*>(query.payload), query.payload_bytes});
  }
  // Bytes that count up, made when they are sent, between others that lie somewhere.
  static OutgoingValue made_value() {
    class Counting : public rpc::Source {
     public:
      explicit Counting(size_t unit) : unit_(unit) {}
      size_t unit_bytes() const override { return unit_; }
      void write(size_t begin, size_t count, void* out) override {
        CHECK_EQUAL(begin, next_);
        CHECK_EQUAL(count % unit_, size_t{0});
        for (size_t i = 0; i < count; ++i) static_cast<uint8_t*>(out)[i] = static_cast<uint8_t>((begin + i) % 251);
        next_ += count;
      }

     private:
      const size_t unit_;
      size_t next_ = 0;
    };
    OutgoingValue value = value_of("made", std::string(70, 'a'));
    for (const size_t bytes : {kMade, size_t{100}})
      value.segments.push_back({nullptr, bytes, nullptr, std::make_shared<Counting>(100)});
    value.segments.push_back({nullptr, 2 * kWide, nullptr, std::make_shared<Counting>(kWide)});
    value.segments.push_back(value_of("", std::string(10, 'z')).segments[0]);
    return value;
  }
  static constexpr size_t kMade = 30'000'000, kWide = 640'000;  // more than a block

  // Lets go those that wait.
  void open() {
    std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  // Waits until so many were begun; what they were.
  std::vector<std::string> begun(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    CHECK(changed_.wait_for(lock, kLong, [&] { return heads_.size() >= count; }));
    return heads_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> heads_;
  bool is_open_ = false;
};

const rpc::EngineSettings kSettings{1000, 3000, uint64_t{1} << 30};
const rpc::EngineSettings kQuickTicks{0.04, 60, uint64_t{1} << 30};

// A process that answers, and connections to it from another.
struct Job {
  explicit Job(rpc::QueryServerSettings for_queries = {}, rpc::EngineSettings settings = kSettings)
      : server(settings, std::move(for_queries)), client(settings), echo(std::make_shared<Echo>()) {
    server.queries().server->serve("echo", echo);
    for (rpc::Engine* engine : {&server, &client}) loops.emplace_back([this, engine] { follow(*engine); });
  }
  ~Job() {
    echo->open();
    is_over = true;
    for (std::thread& loop : loops) loop.join();
  }

  // What an endpoint's loop does: it reads what comes until the first query did.
  void follow(rpc::Engine& engine) {
    while (!is_over) {
      pollfd bell{engine.fd(), POLLIN, 0};
      ::poll(&bell, 1, 20);
      std::lock_guard<std::mutex> lock(connecting);
      for (const rpc::Event& event : engine.poll())
        if (event.what == rpc::Event::What::kMalformed) malformed = true;
    }
  }

  std::shared_ptr<rpc::Stream> connect() {
    int sockets[2];
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets), 0);
    std::lock_guard<std::mutex> lock(connecting);
    accepted.push_back(server.open(sockets[0]));
    accepted.back()->lift_limits();
    auto stream = client.open(sockets[1]);
    stream->lift_limits();
    return stream;
  }

  // A connection whose other end is a bare socket; that, which blocks.
  int connect_bare(std::shared_ptr<rpc::Stream>& stream) {
    int sockets[2];
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    fcntl(sockets[0], F_SETFL, O_NONBLOCK);
    std::lock_guard<std::mutex> lock(connecting);
    stream = server.open(sockets[0]);
    stream->lift_limits();
    return sockets[1];
  }

  struct Asked {
    uint64_t query;
    std::future<QueryOutcome> outcome;
    QueryOutcome get() {
      CHECK(outcome.wait_for(kLong) == std::future_status::ready);
      return outcome.get();
    }
  };
  Asked ask(const std::shared_ptr<rpc::Stream>& stream, const OutgoingValue& value, rpc::Clock::duration limit = kLong,
            const std::string& service = "echo") {
    const auto promise = std::make_shared<std::promise<QueryOutcome>>();
    const uint64_t query =
        client.queries().client->ask(stream, service, value, rpc::Clock::now() + limit,
                                     [promise](QueryOutcome outcome) { promise->set_value(std::move(outcome)); });
    return {query, promise->get_future()};
  }

  rpc::Engine server, client;
  std::shared_ptr<Echo> echo;
  std::vector<std::shared_ptr<rpc::Stream>> accepted;
  std::mutex connecting;  // engines are one thread's: poll() and open()
  std::vector<std::thread> loops;
  std::atomic<bool> is_over{false}, malformed{false};
};

// A frame that asks for nine megabytes.
std::string query_of_large(uint64_t number) {
  rpc::Header header;
  header.kind = static_cast<uint8_t>(rpc::Kind::kQuery);
  header.request_id = rpc::kQueryBit | number;
  return rpc::pack_frame(header,
                         "\x91\xa4"
                         "echo",
                         "large");
}

std::string failure_of(const QueryOutcome& outcome) { return std::string(rpc::split_head(outcome.frame.head).first); }

}  // namespace

TEST("queries: some are answered later, by whoever can, or called off by who asked or by its end") {
  class Later : public rpc::Answerer {
   public:
    void begin(const IncomingValue& query, const std::shared_ptr<rpc::Reply>& reply) override {
      reply->when_called_off([this] {
        std::lock_guard<std::mutex> lock(mutex);
        ++called_off;
        changed.notify_all();
      });
      std::lock_guard<std::mutex> lock(mutex);
      replies.push_back(reply);
      askers.emplace_back(query.asker);
      changed.notify_all();
    }
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::shared_ptr<rpc::Reply>> replies;
    std::vector<std::string> askers;
    size_t called_off = 0;
  };
  const auto later = std::make_shared<Later>();
  const auto wait = [&](size_t replies, size_t called_off) {
    std::unique_lock<std::mutex> lock(later->mutex);
    CHECK(later->changed.wait_for(lock, kLong,
                                  [&] { return later->replies.size() == replies && later->called_off == called_off; }));
  };
  Job job;
  job.server.queries().server->serve("later", later);
  const auto first = job.connect(), second = job.connect();
  std::vector<Job::Asked> asked;
  for (int i = 0; i < 6; ++i) asked.push_back(job.ask(i % 2 == 0 ? first : second, value_of("x"), kLong, "later"));
  wait(6, 0);
  // Which reply is whose is not known here: each is told something of its own.
  job.client.queries().client->forget(asked[0].query);
  wait(6, 1);
  second->close();
  wait(6, 4);
  for (int i : {1, 3, 5}) CHECK(asked[i].get().what == What::kLost);
  later->replies[0]->fail(rpc::pack_error("ProducerGoneError", "gone"));
  for (const auto& reply : later->replies) reply->send(value_of("done"));
  size_t num_failed = 0;
  for (int i : {2, 4}) {
    const QueryOutcome outcome = asked[i].get();
    num_failed += outcome.what == What::kFailed;
    CHECK(outcome.what == What::kAnswered || failure_of(outcome).find("ProducerGoneError") != std::string::npos);
  }
  CHECK(num_failed <= 1);
  later->replies.clear();  // they have their streams, these the engine, and that who answers
  CHECK(job.ask(first, value_of("echo still")).get().what == What::kAnswered);
}

TEST("queries: those of one connection are begun in their order where the answerer keeps it") {
  class InOrder : public rpc::Answerer {
   public:
    void begin(const IncomingValue& query, const std::shared_ptr<rpc::Reply>& reply) override {
      {
        std::lock_guard<std::mutex> lock(mutex);
        heads.emplace_back(query.head);
        is_alone &= ++num_inside == 1;
      }
      std::this_thread::yield();
      {
        std::lock_guard<std::mutex> lock(mutex);
        --num_inside;
      }
      reply->send(value_of("done"));
    }
    bool keeps_order() const override { return true; }
    std::mutex mutex;
    std::vector<std::string> heads;
    int num_inside = 0;
    bool is_alone = true;
  };
  const auto in_order = std::make_shared<InOrder>();
  rpc::QueryServerSettings settings;
  settings.num_threads = 4;
  settings.max_waiting = 10'000;
  Job job(settings);
  job.server.queries().server->serve("in order", in_order);
  const auto stream = job.connect();
  std::vector<Job::Asked> asked;
  std::vector<std::string> expected;
  for (int i = 0; i < 2000; ++i) {
    expected.push_back(message(i));
    asked.push_back(job.ask(stream, value_of(expected.back()), kLong, "in order"));
    if (i % 7 == 0) asked.push_back(job.ask(stream, value_of("echo")));
  }
  for (Job::Asked& each : asked) CHECK(each.get().what == What::kAnswered);
  CHECK(in_order->heads == expected);
  CHECK(in_order->is_alone);
}

TEST("queries: answers that are lent come back when they are read, called off or dropped, or the connection ends") {
  class Lender : public rpc::PromptAnswerer {
   public:
    OutgoingValue answer(const IncomingValue& query) override {
      OutgoingValue value{query.head == "too large" ? std::string(70'000, 'x') : std::string(query.head), {}, {7, 64}};
      std::lock_guard<std::mutex> lock(mutex_);
      ++out_;
      const std::shared_ptr<const void> owner(bytes_, [this](const void*) {
        std::lock_guard<std::mutex> lock(mutex_);
        --out_;
        changed_.notify_all();
      });
      value.segments.push_back({bytes_, sizeof bytes_, owner, nullptr});
      return value;
    }
    void wait_for_none() { wait_for_at_most(0); }
    void wait_for_at_most(size_t count) {
      std::unique_lock<std::mutex> lock(mutex_);
      CHECK(changed_.wait_for(lock, kLong, [this, count] { return out_ <= count; }));
    }
    size_t num_out() {
      std::lock_guard<std::mutex> lock(mutex_);
      return out_;
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    size_t out_ = 0;
    char bytes_[256] = {};
  };
  const auto lender = std::make_shared<Lender>();
  Job job;
  job.server.queries().server->serve("lend", lender);
  const auto stream = job.connect();
  std::shared_ptr<rpc::Stream> theirs;
  {
    std::lock_guard<std::mutex> lock(job.connecting);
    theirs = job.accepted.back();
  }
  theirs->lift_limits(UINT64_MAX, "", 256);
  const auto ask = [&] {
    return rpc::PendingAnswer::ask(job.client.queries().client, stream, "lend", value_of("x"),
                                   rpc::Clock::now() + kLong);
  };
  const auto ending = [](const std::shared_ptr<rpc::PendingAnswer>& pending) {
    CHECK(pending->wait(rpc::Clock::now() + kLong, [] {}));
    std::optional<QueryOutcome> outcome = pending->take();
    CHECK(outcome && outcome->what == What::kAnswered);
    return *outcome;
  };
  CHECK_EQUAL(ending(ask()).frame.header.inline_bytes(), 256u);  // nothing of it is mapped there
  lender->wait_for_none();
  theirs->lending().accept(7, 3);
  {
    const auto read = ask();
    const QueryOutcome outcome = ending(read);
    CHECK_EQUAL(outcome.frame.header.inline_bytes(), 0u);
    CHECK_EQUAL(outcome.frame.header.payload_bytes, 256u);
    const auto place = rpc::read_place(rpc::split_head(outcome.frame.head).first);
    CHECK(place == std::pair(uint64_t{3}, uint64_t{64}));
    CHECK_EQUAL(stream->lent_here(3), 1);
    CHECK_EQUAL(stream->lent_here(4), 0);  // others need not wait for it
    read->borrowed();
    CHECK_EQUAL(stream->lent_here(3), 0);
    CHECK_EQUAL(lender->num_out(), 1u);
    stream->give_back(place);
    lender->wait_for_none();
  }
  const auto refused = rpc::PendingAnswer::ask(job.client.queries().client, stream, "lend", value_of("too large"),
                                               rpc::Clock::now() + kLong);
  CHECK(refused->wait(rpc::Clock::now() + kLong, [] {}));  // its head fits into no frame
  CHECK(refused->take()->what == What::kFailed);
  lender->wait_for_none();
  CHECK(ask()->wait(rpc::Clock::now() + kLong, [] {}));  // and dropped
  lender->wait_for_none();
  const auto until = rpc::Clock::now() + kLong;  // the engine's thread may be who drops it, and has yet to count
  while (stream->lent_here(3) != 0 && rpc::Clock::now() < until) std::this_thread::yield();
  CHECK_EQUAL(stream->lent_here(3), 0);
  {
    const auto held = ask();
    CHECK(held->wait(rpc::Clock::now() + kLong, [] {}));
    const pid_t child = fork();
    if (child == 0) {  // an interpreter at its end drops all that it has
      held->~PendingAnswer();
      stream->give_back({3, 64});
      _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    // Comes behind whatever the fork would have sent; the place is still taken.
    CHECK_EQUAL(ending(ask()).frame.header.inline_bytes(), 256u);
    lender->wait_for_at_most(1);
    CHECK_EQUAL(lender->num_out(), 1u);
    CHECK_EQUAL(stream->lent_here(3), 1);
  }
  lender->wait_for_none();
  for (int i = 0; i < 20; ++i) ask()->call_off();  // at any moment
  lender->wait_for_none();
  theirs->lending().forget(7);
  CHECK_EQUAL(ending(ask()).frame.header.inline_bytes(), 256u);
  lender->wait_for_none();
  theirs->lending().accept(7, 4);
  const auto kept = ask();
  CHECK(kept->wait(rpc::Clock::now() + kLong, [] {}));
  std::vector<rpc::Lending::Lent> left = theirs->lending().close();
  CHECK_EQUAL(left.size(), 1u);
  CHECK_EQUAL(left[0].place.region, 7u);
  CHECK_EQUAL(lender->num_out(), 1u);
  left.clear();
  lender->wait_for_none();
  CHECK_EQUAL(ending(ask()).frame.header.inline_bytes(), 256u);
  CHECK(theirs->lending().count() >= 3);
}

TEST("lending: places of others among those that come back are left to them") {
  rpc::Lending lending;
  lending.accept(1, 2);
  const auto frame_of = [](const std::string& meta) {
    rpc::Header header;
    header.kind = static_cast<uint8_t>(rpc::Kind::kRelease);
    const std::string whole = rpc::pack_frame(header, meta, {});
    rpc::Frame frame;
    frame.header = rpc::read_header(reinterpret_cast<const uint8_t*>(whole.data()));
    frame.head = whole.substr(rpc::kHeaderBytes, frame.header.head_bytes);
    return frame;
  };
  const auto meta_of = [](const rpc::Frame& frame) { return std::string(rpc::split_head(frame.head).first); };
  CHECK(lending.lend({1, 5}, nullptr).has_value());
  CHECK(!lending.lend({2, 5}, nullptr).has_value());
  CHECK(!lending.lend({1, 5}, nullptr).has_value());                            // it is out already
  rpc::Frame mixed = frame_of("\x94\x07\x92\x02\x05\x92\x02\x06\x92\x09\x05");  // [7, [2, 5], [2, 6], [9, 5]]
  CHECK(!lending.take_back(mixed));
  CHECK_EQUAL(meta_of(mixed), "\x93\x07\x92\x02\x06\x92\x09\x05");
  rpc::Frame again = frame_of("\x91\x92\x02\x05");
  CHECK(!lending.take_back(again));  // it is back: who sees to the rest of them says what is wrong
  CHECK_EQUAL(meta_of(again), "\x91\x92\x02\x05");
  lending.lend({1, 5}, nullptr);
  CHECK(lending.take_back(again));
  CHECK(lending.may_offer(4) && !lending.may_offer(4));
  for (const std::string& meta : {std::string("\x01"), std::string("\x90"), std::string("\x91\x05"),
                                  std::string("\x91\x92\xff\x05"), std::string("\x92\x92\x01\x05\x01")})
    CHECK_THROWS(rpc::ProtocolError, rpc::read_place(meta));
}

TEST("queries: answered with the payload that they came with, small or large, many at once") {
  Job job;
  const auto stream = job.connect();
  std::vector<std::pair<std::string, Job::Asked>> asked;
  for (size_t size : {0u, 1u, 64u, 100u, 70'000u, 5'000'000u})
    for (int i = 0; i < 5; ++i) {
      std::string payload(size, static_cast<char>('a' + i));
      payload.resize((size + 63) / 64 * 64);
      asked.emplace_back(payload, job.ask(stream, value_of(message("q", i), payload)));
    }
  for (auto& [payload, each] : asked) {
    const QueryOutcome outcome = each.get();
    CHECK_EQUAL(int(outcome.what), int(What::kAnswered));
    CHECK_EQUAL(outcome.frame.header.payload_bytes, payload.size());
    CHECK(payload.empty() || std::memcmp(outcome.frame.payload.get(), payload.data(), payload.size()) == 0);
  }
  CHECK_EQUAL(stream->queries_sent(), asked.size());
  CHECK_EQUAL(job.accepted[0]->queries_served(), asked.size());
}

TEST("queries: answers that are made when they are sent") {
  Job job;
  const auto stream = job.connect();
  std::vector<Job::Asked> asked;
  for (int i = 0; i < 3; ++i) asked.push_back(job.ask(stream, value_of("made")));
  for (auto& each : asked) {
    const QueryOutcome outcome = each.get();
    CHECK_EQUAL(int(outcome.what), int(What::kAnswered));
    const auto* bytes = static_cast<const uint8_t*>(outcome.frame.payload.get());
    const size_t second = 128 + (Echo::kMade + 63) / 64 * 64, last = second + 128 + 2 * Echo::kWide;
    CHECK_EQUAL(outcome.frame.header.payload_bytes, last + 64);
    for (size_t i = 0; i < 2 * Echo::kWide; ++i) CHECK(bytes[second + 128 + i] == i % 251);
    for (size_t i = 0; i < Echo::kMade; ++i) CHECK(bytes[128 + i] == i % 251);
    for (size_t i = 0; i < 100; ++i) CHECK(bytes[second + i] == i % 251);
    CHECK(bytes[0] == 'a' && bytes[69] == 'a' && bytes[70] == 0 && bytes[last] == 'z' && bytes[last + 9] == 'z');
  }
}

TEST("queries: what an answerer throws is the asker's, and so is a service that nobody serves") {
  Job job;
  const auto stream = job.connect();
  const QueryOutcome unknown = job.ask(stream, value_of("unknown id")).get();
  CHECK_EQUAL(int(unknown.what), int(What::kFailed));
  CHECK(failure_of(unknown).find("UnknownIdError") != std::string::npos);
  CHECK(failure_of(unknown).find("ids[0]: no node 7") != std::string::npos);
  const QueryOutcome nobody = job.ask(stream, value_of("x"), kLong, "no such service").get();
  CHECK_EQUAL(int(nobody.what), int(What::kFailed));
  CHECK(failure_of(nobody).find("no such service") != std::string::npos);
  CHECK_EQUAL(int(job.ask(stream, value_of("x")).get().what), int(What::kAnswered));  // the connection stands
}

TEST("queries: a deadline ends the asker's wait, and drops what has not begun") {
  rpc::QueryServerSettings one_thread;
  one_thread.num_threads = 1;
  Job job(one_thread, kQuickTicks);
  const auto stream = job.connect();
  auto slow = job.ask(stream, value_of("wait"), kLong);
  job.echo->begun(1);
  auto late = job.ask(stream, value_of("late"), 30ms);
  CHECK_EQUAL(int(late.get().what), int(What::kLate));
  job.echo->open();
  CHECK_EQUAL(int(slow.get().what), int(What::kAnswered));
  CHECK_EQUAL(int(job.ask(stream, value_of("last")).get().what), int(What::kAnswered));
  CHECK(job.echo->begun(2) == (std::vector<std::string>{"wait", "last"}));
}

TEST("queries: one that is called off is not begun") {
  rpc::QueryServerSettings one_thread;
  one_thread.num_threads = 1;
  Job job(one_thread);
  const auto stream = job.connect();
  auto slow = job.ask(stream, value_of("wait"));
  job.echo->begun(1);
  auto unwanted = job.ask(stream, value_of("unwanted"));
  auto wanted = job.ask(stream, value_of("wanted"));
  CHECK(job.client.queries().client->forget(unwanted.query));
  CHECK(!job.client.queries().client->forget(unwanted.query));
  auto last = job.ask(stream, value_of("last"));  // behind the message that called it off
  while (job.accepted[0]->queries_served() < 4) std::this_thread::yield();
  job.echo->open();
  CHECK_EQUAL(int(wanted.get().what), int(What::kAnswered));
  CHECK_EQUAL(int(last.get().what), int(What::kAnswered));
  CHECK(job.echo->begun(3) == (std::vector<std::string>{"wait", "wanted", "last"}));
}

TEST("queries: the end of a connection is told to all that wait, and to who asks then") {
  Job job;
  const auto stream = job.connect(), other = job.connect();
  auto waiting = job.ask(stream, value_of("wait"));
  auto elsewhere = job.ask(other, value_of("wait"));
  job.echo->begun(2);
  job.accepted[0]->close();
  CHECK_EQUAL(int(waiting.get().what), int(What::kLost));
  CHECK_EQUAL(int(job.ask(stream, value_of("x")).get().what), int(What::kLost));
  job.echo->open();
  CHECK_EQUAL(int(elsewhere.get().what), int(What::kAnswered));
}

TEST("queries: connections take turns") {
  rpc::QueryServerSettings one_thread;
  one_thread.num_threads = 1;
  Job job(one_thread);
  const auto flooding = job.connect(), modest = job.connect();
  std::vector<Job::Asked> flood;
  flood.push_back(job.ask(flooding, value_of("wait")));
  job.echo->begun(1);
  for (int i = 0; i < 100; ++i) flood.push_back(job.ask(flooding, value_of("flood")));
  auto one = job.ask(modest, value_of("modest"));
  while (job.accepted[0]->queries_served() + job.accepted[1]->queries_served() < 102) std::this_thread::yield();
  job.echo->open();
  CHECK_EQUAL(int(one.get().what), int(What::kAnswered));
  for (auto& each : flood) each.get();
  const std::vector<std::string> begun = job.echo->begun(102);
  CHECK(std::find(begun.begin(), begun.begin() + 4, "modest") != begun.begin() + 4);
}

TEST("queries: who asks for too much at once is told to try again") {
  rpc::QueryServerSettings few;
  few.num_threads = 1;
  few.max_waiting = 3;
  few.own_name = "server-0";
  Job job(few);
  const auto stream = job.connect();
  std::vector<Job::Asked> asked;
  asked.push_back(job.ask(stream, value_of("wait")));
  job.echo->begun(1);
  for (int i = 0; i < 5; ++i) asked.push_back(job.ask(stream, value_of("more")));
  for (int i : {4, 5}) {
    const QueryOutcome refused = asked[static_cast<size_t>(i)].get();
    CHECK_EQUAL(int(refused.what), int(What::kFailed));
    CHECK(failure_of(refused).find("OverloadedError") != std::string::npos);
    CHECK(failure_of(refused).find("server-0") != std::string::npos);
  }
  job.echo->open();
  for (int i = 0; i < 4; ++i) CHECK_EQUAL(int(asked[static_cast<size_t>(i)].get().what), int(What::kAnswered));
}

TEST("queries: while a peer does not read its answers, it gets no more") {
  rpc::QueryServerSettings small;
  small.num_threads = 1;
  small.max_out_bytes = 1 << 20;
  Job job(small);
  std::shared_ptr<rpc::Stream> stream;
  const int bare = job.connect_bare(stream);
  const auto other = job.connect();
  constexpr int kQueries = 5;
  for (uint64_t i = 1; i <= kQueries; ++i) {
    const std::string frame = query_of_large(i);
    CHECK_EQUAL(::write(bare, frame.data(), frame.size()), ssize_t(frame.size()));
  }
  while (stream->queries_served() < kQueries) std::this_thread::yield();
  job.echo->begun(1);
  // The one thread comes to this only after the turn of those that wait.
  CHECK_EQUAL(int(job.ask(other, value_of("other")).get().what), int(What::kAnswered));
  CHECK(job.echo->begun(2) == (std::vector<std::string>{"large", "other"}));
  size_t received = 0;
  std::vector<char> buffer(1 << 20);
  while (received < kQueries * size_t{9'000'000}) {
    const ssize_t count = ::read(bare, buffer.data(), buffer.size());
    CHECK(count > 0);
    received += static_cast<size_t>(count);
  }
  CHECK_EQUAL(job.echo->begun(kQueries + 1).size(), size_t{kQueries + 1});
  ::close(bare);
}

TEST("queries: who asks for ever more and takes nothing loses its connection") {
  rpc::QueryServerSettings small;
  small.num_threads = 1;
  small.max_out_bytes = 1 << 20;
  small.max_waiting = 10;
  Job job(small);
  std::shared_ptr<rpc::Stream> stream;
  const int bare = job.connect_bare(stream);
  const std::string frame = query_of_large(1);
  while (!stream->is_closed()) {
    if (send(bare, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) std::this_thread::yield();
    CHECK(stream->out_bytes() < size_t{40} << 20);
  }
  ::close(bare);
}

TEST("queries: a failure that fits into no frame is told in other words") {
  class Failing : public rpc::Answerer {
   public:
    void begin(const IncomingValue&, const std::shared_ptr<rpc::Reply>& reply) override {
      reply->fail(std::string(1 << 17, 'x'));
    }
  };
  Job job;
  job.server.queries().server->serve("fail", std::make_shared<Failing>());
  auto asked = job.ask(job.connect(), value_of("x"), kLong, "fail");
  CHECK(failure_of(asked.get()).find("InvalidArgumentError") != std::string::npos);
}

TEST("queries: a second one of the same number ends the connection") {
  class Never : public rpc::Answerer {
   public:
    void begin(const IncomingValue&, const std::shared_ptr<rpc::Reply>& reply) override {
      reply->when_called_off([this] { ++num_called_off; });
    }
    std::atomic<int> num_called_off{0};
  };
  const auto never = std::make_shared<Never>();
  Job job;
  job.server.queries().server->serve("echo", never);
  std::shared_ptr<rpc::Stream> stream;
  const int socket = job.connect_bare(stream);
  const std::string twice = query_of_large(1) + query_of_large(1);
  CHECK_EQUAL(::send(socket, twice.data(), twice.size(), 0), static_cast<ssize_t>(twice.size()));
  char byte;
  CHECK_EQUAL(::recv(socket, &byte, 1, 0), 0);
  ::close(socket);
  const auto deadline = rpc::Clock::now() + kLong;
  while (never->num_called_off == 0 && rpc::Clock::now() < deadline) std::this_thread::yield();
  CHECK_EQUAL(never->num_called_off.load(), 1);
}

TEST("queries: a failure's text is cut between two letters") {
  for (size_t ascii = 0; ascii < 4; ++ascii) {
    std::string text(ascii, 'a');
    while (text.size() < 10'000) text += "\xe2\x82\xac";  // three bytes
    const std::string failure = rpc::pack_failure(std::make_exception_ptr(UnknownId(text)));
    const size_t begin = failure.find(text.substr(0, 100)),
                 end = failure.find_first_not_of("\xe2\x82\xac", begin + ascii);
    CHECK((end - begin - ascii) % 3 == 0);
    CHECK(end - begin > 8'000);
  }
}

TEST("queries: frames that break the protocol end the connection, or are answered by an error") {
  Job job;
  const auto stream = job.connect();
  rpc::Header header;
  header.kind = static_cast<uint8_t>(rpc::Kind::kQuery);
  header.request_id = rpc::kQueryBit | 77;
  for (const std::string meta : {"", "\x90", "\x91\x01", "\x92\xa1x\xa1y", "\xff\xff"})
    stream->send_owned(rpc::pack_frame(header, meta, "x"), {});
  header.kind = static_cast<uint8_t>(rpc::Kind::kResponse);  // to nothing that was asked
  stream->send_owned(rpc::pack_frame(header, "\x91\x00", {}), {});
  header.kind = static_cast<uint8_t>(rpc::Kind::kCancel);
  stream->send_owned(rpc::pack_frame(header, "\x90", {}), {});
  CHECK_EQUAL(int(job.ask(stream, value_of("x")).get().what), int(What::kAnswered));
  header.kind = static_cast<uint8_t>(rpc::Kind::kQuery);
  header.flags = rpc::kFlagArena;
  stream->send_owned(rpc::pack_frame(header,
                                     "\x91\xa4"
                                     "echo",
                                     "x"),
                     {});
  while (!job.malformed) std::this_thread::yield();
}

// --- exchanges -------------------------------------------------------------------------------------------------------

namespace {

// Answers every query by one tensor: the payload's bytes.
class Tensors : public rpc::PromptAnswerer {
 public:
  OutgoingValue answer(const IncomingValue& query) override {
    exchange::Query decoded = exchange::decode_query(query);
    return exchange::encode_answer({std::get<exchange::HasEdgesQuery>(decoded).ids});
  }
};

exchange::SingleRound::Question question(int partition, int64_t id) {
  Tensor ids = empty({1}, kInt64);
  *ids.as<int64_t>() = id;
  return {partition, exchange::encode_query(exchange::HasEdgesQuery{0, ids, ids}), {1}};
}

exchange::Ending ending_of(exchange::Runner& runner) {
  for (;;) {
    pollfd bell{runner.fd(), POLLIN, 0};
    CHECK_EQUAL(::poll(&bell, 1, 60'000), 1);
    const auto endings = runner.poll();
    if (!endings.empty()) return endings[0];
  }
}

}  // namespace

TEST("exchanges: carried out over streams, and begun again by others where a holder is lost") {
  Job job;
  job.server.queries().server->serve("partition", std::make_shared<Tensors>());
  const auto first = job.connect(), second = job.connect();
  const auto runner = std::make_shared<exchange::Runner>(job.client.queries().client, 1);
  for (int64_t turn = 0; turn < 50; ++turn) {
    const auto round = std::make_shared<exchange::SingleRound>(
        std::vector<exchange::SingleRound::Question>{question(1, turn), question(2, turn + 100)});
    const uint64_t run = runner->start(round, {{nullptr, first, second}, "partition", 60});
    const exchange::Ending ending = ending_of(*runner);
    CHECK_EQUAL(ending.run, run);
    CHECK_EQUAL(int(ending.what), int(exchange::Ending::What::kDone));
    CHECK_EQUAL(*round->answers()[0][0].as<int64_t>(), turn);
    CHECK_EQUAL(*round->answers()[1][0].as<int64_t>(), turn + 100);
  }
  const auto start = [&](std::vector<exchange::SingleRound::Question> questions, const char* service) {
    const auto round = std::make_shared<exchange::SingleRound>(std::move(questions));
    return runner->start(round, {{nullptr, first, second}, service, 60});
  };
  start({question(1, 1), question(0, 1)}, "partition");
  exchange::Ending ending = ending_of(*runner);
  CHECK_EQUAL(int(ending.what), int(exchange::Ending::What::kLost));
  CHECK_EQUAL(ending.partition, 0);
  start({question(2, 1)}, "no such service");
  ending = ending_of(*runner);
  CHECK_EQUAL(int(ending.what), int(exchange::Ending::What::kFailed));
  CHECK(ending.failure.find("no such service") != std::string::npos);
  start({question(1, 1), question(9, 1)}, "partition");  // there is no such partition
  ending = ending_of(*runner);
  CHECK_EQUAL(int(ending.what), int(exchange::Ending::What::kError));
  start({}, "partition");
  CHECK_EQUAL(int(ending_of(*runner).what), int(exchange::Ending::What::kDone));
  job.accepted[1]->close();
  start({question(1, 1), question(2, 1)}, "partition");
  ending = ending_of(*runner);
  CHECK_EQUAL(int(ending.what), int(exchange::Ending::What::kLost));
  CHECK_EQUAL(ending.partition, 2);
  start({question(1, 1)}, "partition");
  CHECK_EQUAL(int(ending_of(*runner).what), int(exchange::Ending::What::kDone));
}

TEST("exchanges: one that is called off ends at once, whatever its holders do") {
  Job job;
  const auto stream = job.connect();
  const auto runner = std::make_shared<exchange::Runner>(job.client.queries().client, 1);
  rpc::OutgoingValue never = value_of("wait");
  const auto round =
      std::make_shared<exchange::SingleRound>(std::vector<exchange::SingleRound::Question>{{0, never, {1}}});
  const uint64_t run = runner->start(round, {{stream}, "echo", 60});
  job.echo->begun(1);
  runner->cancel(run);
  CHECK_EQUAL(ending_of(*runner).run, run);
  runner->cancel(run);  // it is over
  const uint64_t other = runner->start(
      std::make_shared<exchange::SingleRound>(std::vector<exchange::SingleRound::Question>{{0, never, {1}}}),
      {{stream}, "echo", 60});
  job.echo->begun(2);
  CHECK(other != run);
  runner->close();  // with one under way
}

}  // namespace gld

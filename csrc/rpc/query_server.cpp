#include "rpc/query_server.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/error.h"
#include "common/signals_blocked.h"
#include "rpc/failure.h"
#include "rpc/msgpack.h"
#include "rpc/stream.h"

namespace gld::rpc {
namespace {

constexpr double kRetryAfterS = 0.1;

void send_error(Stream& stream, uint64_t request_id, const std::string& failure) {
  Header header;
  header.kind = static_cast<uint8_t>(Kind::kError);
  header.request_id = request_id;
  stream.send_owned(pack_frame(header, failure, {}), {});
}

}  // namespace

// The reply to a query that came by a stream.
class StreamReply : public Reply {
 public:
  StreamReply(std::weak_ptr<QueryServer> server, std::shared_ptr<Stream> stream, uint64_t request_id)
      : server_(std::move(server)), stream_(std::move(stream)), request_id_(request_id) {}

  void send(OutgoingValue value) override {
    if (!take()) return;
    Header header;
    header.kind = static_cast<uint8_t>(Kind::kResponse);
    header.request_id = request_id_;
    try {
      stream_->send_answer(header, std::move(value));
    } catch (...) {
      send_error(*stream_, request_id_, pack_failure(std::current_exception()));
    }
  }
  void fail(const std::string& failure) override {
    if (!take()) return;
    try {
      send_error(*stream_, request_id_, failure);
    } catch (const InvalidArgument&) {  // no frame takes it
      send_error(*stream_, request_id_, pack_failure(std::current_exception()));
    }
  }
  void when_called_off(std::function<void()> call) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (state_ == State::kAnswered) return;
    if (state_ == State::kOpen) {
      call_ = std::move(call);
      return;
    }
    lock.unlock();
    call();
  }
  void call_off() {
    std::function<void()> call;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (state_ != State::kOpen) return;
      state_ = State::kCalledOff;
      call = std::exchange(call_, nullptr);
    }
    if (call) call();
  }

 private:
  // Whether somebody still waits; nobody does afterwards.
  bool take() {
    std::function<void()> call;  // dies without the lock
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (state_ != State::kOpen) return false;
      state_ = State::kAnswered;
      call = std::exchange(call_, nullptr);
    }
    if (const auto server = server_.lock()) server->answered(stream_->id, request_id_);
    return true;
  }

  const std::weak_ptr<QueryServer> server_;
  const std::shared_ptr<Stream> stream_;
  const uint64_t request_id_;
  enum class State { kOpen, kAnswered, kCalledOff };
  std::mutex mutex_;  // of what follows
  State state_ = State::kOpen;
  std::function<void()> call_;
};

QueryServer::~QueryServer() {
  if (getpid() == owner_) {
    stop();
  } else {
    for (std::thread& thread : threads_) new std::thread(std::move(thread));  // never freed: only the parent has them
  }
}

void QueryServer::serve(const std::string& service, std::shared_ptr<Answerer> answerer) {
  std::shared_ptr<Answerer> before;  // dies without the lock: what it holds may be Python's
  std::lock_guard<std::mutex> lock(mutex_);
  auto& place = services_[service];
  before = std::exchange(place, std::move(answerer));
  if (place == nullptr) services_.erase(service);
}

// --- what streams tell -----------------------------------------------------------------------------------------------

void QueryServer::take(const std::shared_ptr<Stream>& stream, Frame frame) {
  const auto now = Clock::now();
  const uint32_t limit_ms = frame.header.deadline_ms;
  const auto deadline = limit_ms == 0 ? Clock::time_point::max() : now + std::chrono::milliseconds(limit_ms);
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_stopping_) return;
  auto& line = lines_[stream->id];
  if (line == nullptr) line = std::make_shared<Line>(Line{stream, {}});
  if (line->waiting.size() >= settings_.max_waiting) {
    lock.unlock();
    stream->taken(frame.bytes());
    // Who does not take what it is sent, and asks for more than anybody may wait for, would fill this side's memory.
    if (stream->out_bytes() > settings_.max_out_bytes) return stream->close();
    return send_error(*stream, frame.header.request_id, pack_overloaded(settings_.own_name, kRetryAfterS));
  }
  line->waiting.push_back({std::move(frame), deadline});
  queue_turn(line);
  if (!threads_.empty()) return;
  try {
    start_threads();
  } catch (const std::system_error& error) {  // nobody else would tell the caller
    if (!threads_.empty()) return;            // fewer than wanted are enough
    const Waiting query = std::move(line->waiting.back());
    line->waiting.pop_back();
    lock.unlock();
    stream->taken(query.frame.bytes());
    const auto failure = std::make_exception_ptr(std::runtime_error(message("can't start new thread: ", error.what())));
    send_error(*stream, query.frame.header.request_id, pack_failure(failure));
  }
}

void QueryServer::cancel(uint64_t stream, uint64_t request_id) {
  std::shared_ptr<Stream> whose;
  std::shared_ptr<StreamReply> reply;
  size_t bytes = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto begun = under_way_.find({stream, request_id}); begun != under_way_.end()) {
      reply = std::move(begun->second);
      under_way_.erase(begun);
    } else if (const auto found = lines_.find(stream); found != lines_.end()) {
      auto& waiting = found->second->waiting;
      const auto query = std::find_if(waiting.begin(), waiting.end(), [request_id](const Waiting& each) {
        return each.frame.header.request_id == request_id;
      });
      if (query == waiting.end()) return;
      bytes = query->frame.bytes();
      whose = found->second->stream;
      waiting.erase(query);
    }
  }
  if (reply != nullptr) reply->call_off();
  if (whose != nullptr) whose->taken(bytes);
}

void QueryServer::answered(uint64_t stream, uint64_t request_id) {
  std::shared_ptr<StreamReply> reply;  // dies without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = under_way_.find({stream, request_id});
  if (found == under_way_.end()) return;
  reply = std::move(found->second);
  under_way_.erase(found);
}

void QueryServer::flushed(uint64_t stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = lines_.find(stream);
  if (found == lines_.end() || !found->second->is_parked) return;
  if (found->second->stream->out_bytes() > settings_.max_out_bytes) return;
  found->second->is_parked = false;
  queue_turn(found->second);
}

void QueryServer::closed(uint64_t stream) {
  std::shared_ptr<Line> line;  // dies without the lock
  std::vector<std::shared_ptr<StreamReply>> begun;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto reply = under_way_.lower_bound({stream, 0});
    while (reply != under_way_.end() && reply->first.first == stream) {
      begun.push_back(std::move(reply->second));
      reply = under_way_.erase(reply);
    }
    if (const auto found = lines_.find(stream); found != lines_.end()) {
      line = std::move(found->second);
      line->waiting.clear();
      lines_.erase(found);
    }
  }
  for (const auto& reply : begun) reply->call_off();
}

// With mutex_ held.
void QueryServer::queue_turn(const std::shared_ptr<Line>& line) {
  if (line->has_turn || line->is_parked || line->is_busy || line->waiting.empty()) return;
  line->has_turn = true;
  turns_.push_back(line);
  has_work_.notify_one();
}

// --- its threads -----------------------------------------------------------------------------------------------------

void QueryServer::start_threads() {
  const SignalsBlocked blocked;
  while (threads_.size() < static_cast<size_t>(settings_.num_threads)) threads_.emplace_back([this] { run(); });
}

void QueryServer::stop() {
  std::vector<std::thread> threads;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
    threads = std::exchange(threads_, {});
    has_work_.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
  decltype(under_way_) begun;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lines_.clear();
    turns_.clear();
    begun = std::exchange(under_way_, {});
  }
  for (const auto& reply : begun) reply.second->call_off();
}

void QueryServer::run() {
  pthread_setname_np(pthread_self(), "gld-queries");
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    has_work_.wait(lock, [this] { return is_stopping_ || !turns_.empty(); });
    if (is_stopping_) return;
    const std::shared_ptr<Line> line = std::move(turns_.front());
    turns_.pop_front();
    line->has_turn = false;
    if (line->waiting.empty()) continue;
    if (line->stream->out_bytes() > settings_.max_out_bytes) {
      line->is_parked = true;
      continue;
    }
    Waiting query = std::move(line->waiting.front());
    line->waiting.pop_front();
    line->is_busy = true;
    lock.unlock();
    if (Clock::now() > query.deadline || !answer(line, query)) go_on(line);
    line->stream->taken(query.frame.bytes());
    query = {};
    lock.lock();
  }
}

std::shared_ptr<Answerer> QueryServer::answerer_of(std::string_view meta) {
  msgpack::Reader reader = msgpack::Reader::of_value(meta);
  const msgpack::Item list = reader.next();
  if (list.type != msgpack::Type::kList || list.count != 1) throw ProtocolError("query: expected [service]");
  const msgpack::Item service = reader.next();
  if (service.type != msgpack::Type::kText) throw ProtocolError("query: expected the name of a service");
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = services_.find(service.bytes);
  if (found == services_.end())
    throw InvalidArgument(
        message("service: ", std::string(service.bytes).substr(0, 200), " is not served by ", settings_.own_name));
  return found->second;
}

// Others of the line may be looked at.
void QueryServer::go_on(const std::shared_ptr<Line>& line) {
  std::lock_guard<std::mutex> lock(mutex_);
  line->is_busy = false;
  queue_turn(line);
}

bool QueryServer::answer(const std::shared_ptr<Line>& line, const Waiting& query) {
  const std::shared_ptr<Stream>& stream = line->stream;
  const uint64_t request_id = query.frame.header.request_id;
  std::pair<std::string_view, std::string_view> parts;
  try {
    parts = split_head(query.frame.head);
  } catch (const ProtocolError&) {  // what follows is of no use either
    stream->close();
    return false;
  }
  const auto reply = std::make_shared<StreamReply>(weak_from_this(), stream, request_id);
  bool is_new;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_new = under_way_.try_emplace({stream->id, request_id}, reply).second;
  }
  if (!is_new) {  // nobody could tell its answer from the other's
    stream->close();
    return false;
  }
  if (stream->is_closed()) {  // nobody else may tell of it any more
    closed(stream->id);
    return false;
  }
  bool others_go_on = false;
  try {
    const auto [meta, head] = parts;
    const IncomingValue value{head, query.frame.payload.get(), query.frame.header.inline_bytes(), query.frame.payload,
                              stream->peer_key()};
    const std::shared_ptr<Answerer> answerer = answerer_of(meta);
    others_go_on = !answerer->keeps_order();
    if (others_go_on) go_on(line);
    answerer->begin(value, reply);
  } catch (...) {
    reply->fail(pack_failure(std::current_exception()));
  }
  return others_go_on;
}

}  // namespace gld::rpc

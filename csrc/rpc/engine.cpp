#include "rpc/engine.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/error.h"
#include "common/signals_blocked.h"

namespace gld::rpc {
namespace {

constexpr int kTicksPerHeartbeat = 4;
// A tick that comes so late means that this process was stopped.
constexpr std::chrono::milliseconds kLate{500};

const ControlFrame kPing = control_frame(Kind::kPing);

}  // namespace

// --- Engine: the loop's side -----------------------------------------------------------------------------------------

Engine::Engine(const EngineSettings& settings, QueryServerSettings for_queries)
    : settings_(settings),
      owner_(getpid()),
      mailbox_(std::make_shared<Mailbox>()),
      queries_{std::make_shared<QueryServer>(std::move(for_queries)), std::make_shared<QueryClient>()},
      epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, mailbox_->to_engine.fd(), &event);
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    ::close(epoll_);
    throw;
  }
}

Engine::~Engine() {
  if (getpid() != owner_) {
    new std::thread(std::move(thread_));  // never freed: it stands for a thread that only the parent has
    return;
  }
  close();
  ::close(epoll_);
}

std::shared_ptr<Stream> Engine::open(int socket) {
  if (!thread_.joinable()) throw InvalidArgument("open: expected an engine that is not closed");
  const int flags = fcntl(socket, F_GETFL);
  if (flags < 0)
    throw InvalidArgument(message("fd: expected an open socket, got ", socket, " (", strerror(errno), ")"));
  if ((flags & O_NONBLOCK) == 0)
    throw InvalidArgument(message("fd: expected a non-blocking socket, got ", socket, ", which blocks"));
  std::shared_ptr<Stream> stream(new Stream(mailbox_, queries_, settings_, next_id_++, socket));
  opened_.emplace(stream->id, stream);
  mailbox_->queue_for_engine(stream);
  return stream;
}

int Engine::fd() const { return mailbox_->loop.fd(); }

std::vector<Event> Engine::poll() {
  for (const uint64_t id : mailbox_->loop.ready())
    if (const auto found = opened_.find(id); found != opened_.end()) found->second->read_as(Stream::Reader::kLoop);
  std::vector<Event> events = mailbox_->take_events();
  for (const Event& event : events)
    if (event.what == Event::What::kClosed) opened_.erase(event.stream);
  return events;
}

void Engine::close() {
  if (!thread_.joinable() || getpid() != owner_) return;
  queries_.server->stop();  // before the streams, to whose ends its threads would send
  mailbox_->stop();
  thread_.join();
}

// --- Engine: its thread ----------------------------------------------------------------------------------------------

void Engine::run() {
  pthread_setname_np(pthread_self(), "gld-rpc");
  const Clock::duration period = seconds(settings_.heartbeat_interval_s) / kTicksPerHeartbeat;
  epoll_event events[64];
  for (;;) {
    int wait_ms = -1;
    if (!streams_.empty()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_tick_ - Clock::now());
      wait_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
    } else {
      next_tick_ = Clock::time_point::max();
    }
    const int count = epoll_wait(epoll_, events, 64, wait_ms);
    const Clock::time_point now = Clock::now();
    if (next_tick_ == Clock::time_point::max()) next_tick_ = now + period;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == 0) {
        mailbox_->to_engine.hush();
        attend();
      } else if (const auto found = streams_.find(events[i].data.u64); found != streams_.end()) {
        const std::shared_ptr<Stream> stream = found->second;  // looking after it may take it out
        if ((events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) stream->read_as(Stream::Reader::kEngine);
        look_after(*stream);
      }
      mailbox_->queue_for_loop(fresh_);
    }
    if (now >= next_tick_) {
      const bool is_late = now - next_tick_ > kLate;
      next_tick_ = now + period;
      tick(now, is_late);
      mailbox_->queue_for_loop(fresh_);
    }
    if (mailbox_->is_stopping()) break;
  }
  stop();
}

// Nothing is queued any more: takes what was queued before, closes everything.
void Engine::stop() {
  attend();
  while (!streams_.empty()) {
    const std::shared_ptr<Stream> stream = streams_.begin()->second;
    finish(*stream, "");
  }
  mailbox_->queue_for_loop(fresh_);
}

void Engine::attend() {
  for (const std::shared_ptr<Stream>& stream : mailbox_->take_streams()) {
    if (stream->state_ == Stream::State::kNew) {
      streams_.emplace(stream->id, stream);
      stream->state_ = Stream::State::kOpen;
    }
    look_after(*stream);
  }
}

void Engine::look_after(Stream& stream) {
  if (stream.state_ != Stream::State::kOpen) return;
  if (stream.is_closing()) {
    write(stream);  // a refusal, say, that was queued because this thread was writing
    return finish(stream, "");
  }
  const std::string why = stream.go_on();
  if (!why.empty()) return finish(stream, why);
  flush(stream);
}

Outbox::State Engine::write(Stream& stream) {
  std::vector<uint64_t> sent;
  const Outbox::State state = stream.outbox_.flush(sent);
  const int reason = errno;
  for (const uint64_t token : sent) fresh_.push_back({stream.id, Event::What::kSent, {}, token, {}});
  if (stream.has_room_to_tell()) fresh_.push_back({stream.id, Event::What::kRoom, {}, 0, {}});
  errno = reason;
  return state;
}

void Engine::flush(Stream& stream) {
  const Outbox::State state = write(stream);
  const int reason = errno;
  if (state == Outbox::State::kBroken) {
    stream.read_as(Stream::Reader::kEngine);  // what the peer sent before it went
    return finish(stream, message("connection broken: ", std::strerror(reason)));
  }
  stream.is_blocked_ = state == Outbox::State::kBlocked;
  queries_.server->flushed(stream.id);
  update_interest(stream);
}

void Engine::update_interest(Stream& stream) {
  const uint32_t wanted = (stream.is_engines() ? EPOLLIN : 0u) | (stream.is_blocked_ ? EPOLLOUT : 0u);
  if (wanted == stream.interest_) return;
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = stream.id;
  // Out of epoll where nothing is wanted: a hang-up would be reported for ever.
  const int operation = stream.interest_ == 0 ? EPOLL_CTL_ADD : wanted == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  stream.interest_ = wanted;
  if (epoll_ctl(epoll_, operation, stream.socket_, &event) != 0)
    finish(stream, message("it cannot be watched: ", std::strerror(errno)));
}

void Engine::tick(Clock::time_point now, bool is_late) {
  queries_.client->expire(now);
  std::vector<std::shared_ptr<Stream>> streams;  // one that dies is taken out
  for (const auto& entry : streams_) streams.push_back(entry.second);
  for (const std::shared_ptr<Stream>& stream : streams) {
    const Heartbeat::Verdict verdict = stream->beat(now, is_late);
    if (!verdict.dead.empty()) {
      finish(*stream, verdict.dead);
    } else if (verdict.ping && !stream->send_control(kPing)) {
      look_after(*stream);
    }
  }
}

void Engine::finish(Stream& stream, const std::string& why) {
  if (stream.state_ != Stream::State::kOpen) return;
  stream.state_ = Stream::State::kClosed;
  stream.outbox_.close();
  // Closing alone would not take it out of epoll while a forked process has a copy.
  if (stream.interest_ != 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, stream.socket_, nullptr);
  stream.interest_ = 0;
  stream.shut();
  queries_.server->closed(stream.id);
  queries_.client->closed(stream.id, why.empty() ? "connection closed" : why);
  fresh_.push_back({stream.id, Event::What::kClosed, {}, 0, why});
  streams_.erase(stream.id);
}

}  // namespace gld::rpc

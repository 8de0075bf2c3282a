#include "rpc/engine.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "common/error.h"
#include "common/signals_blocked.h"

namespace gld::rpc {
namespace {

// What may lie here untaken before no more is read of a stream.
constexpr size_t kReceiveCredit = size_t{64} << 20;
// System calls in a row, so that one busy stream does not starve the others.
constexpr int kRounds = 32;
constexpr int kTicksPerHeartbeat = 4;
// While more than this of a payload is missing, the thread is woken for no less.
constexpr size_t kLeastBytes = 256 << 10;
// A tick that comes so late means that this process was stopped.
constexpr std::chrono::milliseconds kLate{500};

Clock::duration seconds(double count) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
}

int checked(int descriptor, const char* what) {
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), what);
  return descriptor;
}

bool is_tcp(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 && address.ss_family != AF_UNIX;
}

// An event counter, used as a bell.
class Bell {
 public:
  Bell() : fd_(checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {}
  ~Bell() { ::close(fd_); }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;
  int fd() const { return fd_; }
  void ring() const {
    const uint64_t one = 1;
    // Fails only where the counter is full, and then it rings already.
    [[maybe_unused]] const ssize_t count = ::write(fd_, &one, sizeof one);
  }
  void hush() const {
    uint64_t counter;
    [[maybe_unused]] const ssize_t count = ::read(fd_, &counter, sizeof counter);  // it may not have rung
  }

 private:
  const int fd_;
};

const ControlFrame kPing = control_frame(Kind::kPing);
const ControlFrame kPong = control_frame(Kind::kPong);

}  // namespace

// What the loop and the engine's thread tell each other.
struct Mailbox {
  Bell to_engine, to_loop;
  std::mutex mutex;
  std::vector<std::shared_ptr<Stream>> attention;  // streams that the engine's thread is to look after
  std::vector<Event> events;
  bool is_stopping = false;

  void ask(std::shared_ptr<Stream> stream) {
    std::lock_guard<std::mutex> lock(mutex);
    if (is_stopping) return;
    if (attention.empty()) to_engine.ring();
    attention.push_back(std::move(stream));
  }
  void tell(Event event) {
    std::lock_guard<std::mutex> lock(mutex);
    if (events.empty()) to_loop.ring();
    events.push_back(std::move(event));
  }
};

// --- Stream ----------------------------------------------------------------------------------------------------------

Stream::Stream(std::shared_ptr<Mailbox> mailbox, const EngineSettings& settings, uint64_t id, int socket)
    : id(id),
      mailbox_(std::move(mailbox)),
      socket_(socket),
      outbox_(socket),
      is_tcp_(is_tcp(socket)),
      decoder_(Limits{}),
      heartbeat_(seconds(settings.heartbeat_interval_s), seconds(settings.heartbeat_timeout_s), Clock::now()),
      last_received_(Clock::now()) {}

bool Stream::send(uint64_t token, std::vector<iovec> parts) {
  if (outbox_.send(token, std::move(parts))) return true;
  mailbox_->ask(shared_from_this());
  return false;
}

// Before the peer is known: one frame at a time.
size_t Stream::credit() const { return is_known_ ? kReceiveCredit : 1; }

void Stream::taken(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  untaken_ -= std::min(bytes, untaken_);
  if (!is_paused_ || untaken_ >= credit()) return;
  is_paused_ = false;
  mailbox_->ask(shared_from_this());
}

bool Stream::may_deliver() {
  std::lock_guard<std::mutex> lock(mutex_);
  beats_ = is_known_;
  is_paused_ = untaken_ >= credit();
  return !is_paused_;
}

void Stream::lift_limits() {
  std::lock_guard<std::mutex> lock(mutex_);
  is_known_ = true;
}

void Stream::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  mailbox_->ask(shared_from_this());
}

bool Stream::is_closing() {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_closing_;
}

std::optional<Frame> Stream::await_answer(uint64_t request_id, Clock::time_point deadline,
                                          const std::function<void()>& check_signals) {
  try {
    return answers_.wait(request_id, deadline, check_signals);
  } catch (...) {
    if (std::optional<Frame> frame = answers_.take(request_id)) {  // the thread goes elsewhere: it is the loop's again
      {
        std::lock_guard<std::mutex> lock(mutex_);
        untaken_ += frame->bytes();
      }
      mailbox_->tell({id, Event::What::kFrame, std::move(*frame), 0, {}});
    }
    throw;
  }
}

// Whether a frame went to a thread that waits for it.
bool Stream::hand_over(Frame& frame) {
  const bool is_answer = frame.header.kind == static_cast<uint8_t>(Kind::kResponse) ||
                         (frame.header.kind == static_cast<uint8_t>(Kind::kError) && frame.header.request_id != 0);
  return is_answer && (frame.header.flags & kFlagArena) == 0 && answers_.offer(frame);
}

// --- Engine: the loop's side -----------------------------------------------------------------------------------------

Engine::Engine(const EngineSettings& settings)
    : settings_(settings),
      owner_(getpid()),
      mailbox_(std::make_shared<Mailbox>()),
      epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {
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
  std::shared_ptr<Stream> stream(new Stream(mailbox_, settings_, next_id_++, socket));
  mailbox_->ask(stream);
  return stream;
}

int Engine::fd() const { return mailbox_->to_loop.fd(); }

std::vector<Event> Engine::poll() {
  mailbox_->to_loop.hush();
  std::lock_guard<std::mutex> lock(mailbox_->mutex);
  return std::exchange(mailbox_->events, {});
}

void Engine::close() {
  if (!thread_.joinable() || getpid() != owner_) return;
  {
    std::lock_guard<std::mutex> lock(mailbox_->mutex);
    mailbox_->is_stopping = true;
  }
  mailbox_->to_engine.ring();
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
        const std::shared_ptr<Stream> stream = found->second;  // handling it may take it out
        handle(*stream, events[i].events);
      }
      publish();
    }
    if (now >= next_tick_) {
      if (now - next_tick_ > kLate)
        for (const auto& entry : streams_) entry.second->heartbeat_.forgive(now);
      next_tick_ = now + period;
      tick(now);
      publish();
    }
    std::unique_lock<std::mutex> lock(mailbox_->mutex);
    if (mailbox_->is_stopping) break;
  }
  stop();
}

// Nothing is asked any more: takes what was asked before, closes everything.
void Engine::stop() {
  attend();
  while (!streams_.empty()) {
    const std::shared_ptr<Stream> stream = streams_.begin()->second;
    finish(*stream, "");
  }
  publish();
}

void Engine::attend() {
  std::vector<std::shared_ptr<Stream>> asked;
  {
    std::lock_guard<std::mutex> lock(mailbox_->mutex);
    asked.swap(mailbox_->attention);
  }
  for (const std::shared_ptr<Stream>& stream : asked) {
    if (stream->state_ == Stream::State::kNew) {
      streams_.emplace(stream->id, stream);
      stream->state_ = Stream::State::kOpen;
    }
    if (stream->state_ == Stream::State::kOpen) look_after(*stream);
  }
}

void Engine::look_after(Stream& stream) {
  if (stream.is_closing()) return finish(stream, "");
  if (!stream.reads_ && !stream.is_malformed_) stream.reads_ = deliver(stream);
  if (stream.state_ == Stream::State::kOpen) flush(stream);
}

void Engine::handle(Stream& stream, uint32_t events) {
  if (stream.reads_ && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive(stream);
  // A PONG may be due; and who hung up on a stream that is not read is found by writing.
  if (stream.state_ == Stream::State::kOpen && (stream.outbox_.bytes() > 0 || !stream.reads_)) flush(stream);
  if (stream.state_ == Stream::State::kOpen) update_interest(stream);
}

void Engine::receive(Stream& stream) {
  for (int round = 0; round < kRounds; ++round) {
    const auto room = stream.decoder_.room();
    const ssize_t count = readv(stream.socket_, room.data(), room[1].iov_len > 0 ? 2 : 1);
    if (count == 0) return finish(stream, "connection closed");
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) finish(stream, message("connection broken: ", std::strerror(errno)));
      return;
    }
    stream.last_received_ = Clock::now();
    stream.decoder_.filled(static_cast<size_t>(count));
    stream.reads_ = deliver(stream);
    if (!stream.reads_) return;
    if (static_cast<size_t>(count) < room[0].iov_len + room[1].iov_len) return;
  }
}

// TCP would wake the thread for every few packets of a large payload.
void Engine::expect(Stream& stream) {
  const size_t missing = stream.decoder_.missing_payload_bytes();
  const int least = missing > kLeastBytes ? kLeastBytes : 1;
  if (stream.is_tcp_ && least != stream.least_bytes_ &&
      setsockopt(stream.socket_, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0)
    stream.least_bytes_ = least;
}

// Hands out what is complete; whether more may be read.
bool Engine::deliver(Stream& stream) {
  try {
    while (stream.may_deliver()) {
      if (stream.beats_) stream.decoder_.set_limits({kMaxHeadBytes, settings_.max_payload_bytes});
      std::optional<Frame> frame = stream.decoder_.next();
      if (!frame) return true;
      take_frame(stream, std::move(*frame));
    }
  } catch (const ProtocolError& error) {
    stream.is_malformed_ = true;
    const bool is_mismatch = dynamic_cast<const VersionMismatch*>(&error) != nullptr;
    fresh_.push_back({stream.id, is_mismatch ? Event::What::kMismatch : Event::What::kMalformed, {}, 0, error.what()});
  } catch (const std::bad_alloc&) {
    finish(stream, "no memory for what it sent");
  }
  return false;
}

void Engine::take_frame(Stream& stream, Frame frame) {
  if (stream.beats_ && frame.header.kind == static_cast<uint8_t>(Kind::kPing))
    return stream.outbox_.send_control(kPong);
  if (stream.beats_ && frame.header.kind == static_cast<uint8_t>(Kind::kPong)) return;  // that it came is all it says
  {
    std::unique_lock<std::mutex> lock(stream.mutex_);
    if (stream.untaken_ == 0) {  // else it would overtake what came before
      lock.unlock();
      if (stream.hand_over(frame)) return;
      lock.lock();
    }
    stream.untaken_ += frame.bytes();
  }
  fresh_.push_back({stream.id, Event::What::kFrame, std::move(frame), 0, {}});
}

void Engine::flush(Stream& stream) {
  std::vector<uint64_t> sent;
  const Outbox::State state = stream.outbox_.flush(sent);
  const int reason = errno;
  for (const uint64_t token : sent) fresh_.push_back({stream.id, Event::What::kSent, {}, token, {}});
  if (state == Outbox::State::kBroken) return finish(stream, message("connection broken: ", std::strerror(reason)));
  stream.is_blocked_ = state == Outbox::State::kBlocked;
  update_interest(stream);
}

void Engine::update_interest(Stream& stream) {
  if (stream.reads_) expect(stream);
  const uint32_t wanted = (stream.reads_ ? EPOLLIN : 0u) | (stream.is_blocked_ ? EPOLLOUT : 0u);
  if (wanted == stream.interest_) return;
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = stream.id;
  // Out of epoll where nothing is wanted: a hang-up would be told for ever.
  const int operation = stream.interest_ == 0 ? EPOLL_CTL_ADD : wanted == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  stream.interest_ = wanted;
  if (epoll_ctl(epoll_, operation, stream.socket_, &event) != 0)
    finish(stream, message("it cannot be watched: ", std::strerror(errno)));
}

void Engine::tick(Clock::time_point now) {
  std::vector<std::shared_ptr<Stream>> streams;
  for (const auto& entry : streams_)
    if (entry.second->beats_) streams.push_back(entry.second);
  for (const std::shared_ptr<Stream>& stream : streams) {
    if (stream->least_bytes_ > 1) handle(*stream, EPOLLIN);  // fewer bytes are a sign of life, too
    if (!stream->reads_) stream->heartbeat_.forgive(now);
    const Heartbeat::Verdict verdict =
        stream->heartbeat_.check(now, stream->last_received_, stream->outbox_.last_progress(), stream->outbox_.bytes());
    if (!verdict.dead.empty()) {
      finish(*stream, verdict.dead);
    } else if (verdict.ping) {
      stream->outbox_.send_control(kPing);
      flush(*stream);
    }
  }
}

void Engine::finish(Stream& stream, const std::string& why) {
  if (stream.state_ != Stream::State::kOpen) return;
  stream.state_ = Stream::State::kClosed;
  stream.reads_ = false;
  stream.outbox_.close();
  // Closing alone would not take it out of epoll while a forked process has a copy.
  if (stream.interest_ != 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, stream.socket_, nullptr);
  stream.interest_ = 0;
  ::close(stream.socket_);
  fresh_.push_back({stream.id, Event::What::kClosed, {}, 0, why});
  streams_.erase(stream.id);
}

// Tells the loop. Rings only where it is not awake for something earlier.
void Engine::publish() {
  if (fresh_.empty()) return;
  std::lock_guard<std::mutex> lock(mailbox_->mutex);
  if (mailbox_->events.empty()) mailbox_->to_loop.ring();
  std::move(fresh_.begin(), fresh_.end(), std::back_inserter(mailbox_->events));
  fresh_.clear();
}

}  // namespace gld::rpc

#include "rpc/stream.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "common/error.h"
#include "rpc/msgpack.h"

namespace gld::rpc {
namespace {

// What may lie here untaken before no more is read of a stream.
constexpr size_t kReceiveCredit = size_t{64} << 20;
// System calls in a row, so that one busy stream does not starve the others.
constexpr int kRounds = 32;
// A payload of which more is missing is the engine's thread's: the loop has other things to do, with the interpreter.
constexpr size_t kLargeBytes = 64 << 10;
// While more than this of a payload is missing, the engine's thread is woken for no less.
constexpr size_t kLeastBytes = 256 << 10;

const ControlFrame kPong = control_frame(Kind::kPong);

bool is_tcp_socket(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 && address.ss_family != AF_UNIX;
}

// Whether its payload has to be copied from the peer's arena, and is not lent: its head begins with [place], which is a
// number then, and [region, place] otherwise.
bool is_in_arena(const Frame& frame) {
  if ((frame.header.flags & kFlagArena) == 0) return false;
  try {
    const std::string_view meta = split_head(frame.head).first;
    msgpack::Reader reader = msgpack::Reader::of_value(meta);
    return reader.next().count != 1 || reader.next().type != msgpack::Type::kList;
  } catch (const ProtocolError&) {  // the loop says so
    return true;
  }
}

timespec as_timespec(Clock::duration duration) {
  const auto count = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  return {static_cast<time_t>(count / 1'000'000'000), static_cast<long>(count % 1'000'000'000)};
}

}  // namespace

Clock::duration seconds(double count) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
}

Stream::Stream(std::shared_ptr<Mailbox> mailbox, const Queries& queries, const EngineSettings& settings, uint64_t id,
               int socket)
    : id(id),
      owner_(getpid()),
      mailbox_(std::move(mailbox)),
      queries_(queries),
      socket_(socket),
      max_payload_bytes_(settings.max_payload_bytes),
      is_tcp_(is_tcp_socket(socket)),
      outbox_(socket),
      decoder_(Limits{}),
      heartbeat_(seconds(settings.heartbeat_interval_s), seconds(settings.heartbeat_timeout_s), Clock::now()),
      last_received_(Clock::now()) {}

// --- any thread ------------------------------------------------------------------------------------------------------

bool Stream::send(uint64_t token, std::vector<iovec> parts) {
  if (!is_here()) return true;
  if (!parts.empty()) sent_.add_frames(static_cast<const uint8_t*>(parts[0].iov_base), parts[0].iov_len);
  if (outbox_.send(token, std::move(parts))) return true;
  mailbox_->queue_for_engine(shared_from_this());
  return false;
}

void Stream::send_owned(std::string frame, std::vector<Segment> segments) {
  if (!is_here()) return;
  static const uint8_t kZeros[kSegmentAlignment] = {};
  const auto head = std::make_shared<const std::string>(std::move(frame));
  sent_.add_frames(reinterpret_cast<const uint8_t*>(head->data()), head->size());
  std::vector<iovec> parts{{const_cast<char*>(head->data()), head->size()}};
  Outbox::Owners owners{head};
  Outbox::Sources sources;
  for (Segment& segment : segments) {
    if (segment.bytes == 0) continue;
    const bool is_made = segment.source == nullptr;
    if (!is_made) sources.push_back(std::move(segment.source));
    parts.push_back({is_made ? const_cast<void*>(segment.data) : nullptr, segment.bytes});
    if (const size_t rest = segment.bytes % kSegmentAlignment; rest != 0)
      parts.push_back({const_cast<uint8_t*>(kZeros), kSegmentAlignment - rest});
    owners.push_back(std::move(segment.owner));
  }
  if (!outbox_.send_owned(std::move(parts), std::move(owners), std::move(sources)))
    mailbox_->queue_for_engine(shared_from_this());
}

void Stream::send_answer(Header header, OutgoingValue value) {
  header.payload_bytes = value.payload_bytes();
  if (header.payload_bytes > peer_limit_bytes())
    throw InvalidArgument(
        message("payload: the peer takes at most ", peer_limit_bytes(), " bytes, got ", header.payload_bytes));
  if (value.place.region != 0 && header.payload_bytes >= least_lent_bytes_) {
    std::lock_guard<std::mutex> lock(answering_);
    if (const auto place = lending_.lend(value.place, value.segments.front().owner)) {
      header.flags |= kFlagArena;
      std::string frame;
      try {
        frame = pack_frame(header, pack_place(*place), value.head);
      } catch (...) {  // the peer will never hear of it
        lending_.take_back(*place);
        throw;
      }
      return send_owned(std::move(frame), {});
    }
    if (lending_.may_offer(value.place.region)) {
      std::vector<Event> events;
      events.push_back({id, Event::What::kOffer, {}, value.place.region, {}});
      mailbox_->queue_for_loop(events);
    }
  }
  static const std::string kNoPlace("\x91\x00", 2);  // [0]: the payload follows
  send_owned(pack_frame(header, kNoPlace, value.head), std::move(value.segments));
}

void Stream::forget_region(uint64_t region) {
  std::lock_guard<std::mutex> lock(answering_);
  lending_.forget(region);
}

void Stream::give_back(std::pair<uint64_t, uint64_t> place) {
  Header header;
  header.kind = static_cast<uint8_t>(Kind::kRelease);
  send_owned(pack_frame(header, pack_place(place), {}), {});
}

int64_t Stream::lent_here(uint64_t region) {
  std::lock_guard<std::mutex> lock(borrowing_);
  const auto found = lent_here_.find(region);
  return found == lent_here_.end() ? 0 : found->second;
}

void Stream::count_lent_here(uint64_t region, int64_t change) {
  std::lock_guard<std::mutex> lock(borrowing_);
  const auto counted = lent_here_.try_emplace(region, 0).first;
  if ((counted->second += change) == 0) lent_here_.erase(counted);
}

void Stream::send_query(std::string frame, std::vector<Segment> segments) {
  has_queries_ = true;
  queries_sent_.fetch_add(1, std::memory_order_relaxed);
  send_owned(std::move(frame), std::move(segments));
}

bool Stream::send_control(const ControlFrame& frame) {
  if (out_bytes() == 0) sent_.add_frames(frame.data(), frame.size());
  return outbox_.send_control(frame);
}

// Before the peer is known: one frame at a time.
size_t Stream::credit() const { return is_known_ ? kReceiveCredit : 1; }

void Stream::taken(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  untaken_ -= std::min(bytes, untaken_);
  if (!is_paused_ || untaken_ >= credit()) return;
  is_paused_ = false;
  mailbox_->queue_for_engine(shared_from_this());
}

void Stream::lift_limits(uint64_t peer_limit_bytes, std::string peer_key, uint64_t least_lent_bytes) {
  peer_limit_bytes_ = peer_limit_bytes;
  least_lent_bytes_ = is_tcp_ ? UINT64_MAX : least_lent_bytes;
  if (!has_key_) {
    peer_key_ = std::move(peer_key);
    has_key_ = true;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  is_known_ = true;
}

void Stream::tell_when_below(size_t bytes) {
  told_below_ = static_cast<int64_t>(std::min<size_t>(bytes, INT64_MAX));
  mailbox_->queue_for_engine(shared_from_this());
}

bool Stream::has_room_to_tell() {
  int64_t limit = told_below_;
  return limit >= 0 && out_bytes() <= static_cast<size_t>(limit) && told_below_.compare_exchange_strong(limit, -1);
}

void Stream::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  mailbox_->queue_for_engine(shared_from_this());
}

bool Stream::is_closing() {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_closing_;
}

// --- receiving -------------------------------------------------------------------------------------------------------

bool Stream::read_as(Reader reader) {
  std::lock_guard<std::mutex> lock(receiving_);
  if (reader_ == Reader::kNobody || (reader_ != reader && reader != Reader::kEngine)) return false;
  const bool is_anothers = reader_ == Reader::kWaiter && reader != Reader::kWaiter;
  receive(reader == Reader::kLoop);
  if (is_anothers) to_waiter_->ring();  // it sleeps on the socket, where nothing is left
  return reader_ == reader;
}

void Stream::receive(bool by_loop) {
  std::vector<Event> fresh;
  Reader next = reader_;
  for (int round = 0; round < kRounds && next == reader_; ++round) {
    const auto room = decoder_.room();
    const ssize_t count = readv(socket_, room.data(), room[1].iov_len > 0 ? 2 : 1);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count <= 0) {
      end_ = count == 0 ? "connection closed" : message("connection broken: ", std::strerror(errno));
      next = Reader::kNobody;
      break;
    }
    last_received_ = Clock::now();
    decoder_.filled(static_cast<size_t>(count));
    next = deliver(fresh, reader_);
    if (static_cast<size_t>(count) < room[0].iov_len + room[1].iov_len) break;
  }
  mailbox_->queue_for_loop(fresh, by_loop);
  give_to(next);
}

// Hands out what is complete; who reads on, which is `reader` unless something speaks against it.
Stream::Reader Stream::deliver(std::vector<Event>& fresh, Reader reader) {
  try {
    while (may_deliver()) {
      if (beats_) decoder_.set_limits({kMaxHeadBytes, max_payload_bytes_});
      std::optional<Frame> frame = decoder_.next();
      if (!frame) {
        const bool is_large = decoder_.missing_payload_bytes() > kLargeBytes;
        is_busy_ |= is_large;
        return is_large || has_queries_ ? Reader::kEngine : reader;
      }
      take_frame(std::move(*frame), fresh);
    }
  } catch (const ProtocolError& error) {
    is_malformed_ = true;
    const bool is_mismatch = dynamic_cast<const VersionMismatch*>(&error) != nullptr;
    fresh.push_back({id, is_mismatch ? Event::What::kMismatch : Event::What::kMalformed, {}, 0, error.what()});
  } catch (const std::bad_alloc&) {
    end_ = "no memory for what it sent";
  }
  return Reader::kNobody;
}

bool Stream::may_deliver() {
  std::lock_guard<std::mutex> lock(mutex_);
  beats_ = is_known_;
  is_paused_ = untaken_ >= credit();
  return !is_paused_;
}

void Stream::take_frame(Frame frame, std::vector<Event>& fresh) {
  received_.add(frame.header);
  if (beats_ && frame.header.kind == static_cast<uint8_t>(Kind::kPing)) {
    if (!send_control(kPong)) mailbox_->queue_for_engine(shared_from_this());
    return;
  }
  if (beats_ && frame.header.kind == static_cast<uint8_t>(Kind::kPong)) return;  // that it came is all it says
  if (beats_ && frame.header.kind == static_cast<uint8_t>(Kind::kRelease) && lending_.take_back(frame)) return;
  if (beats_ && (frame.header.request_id & kQueryBit) != 0 && take_query_frame(frame)) return;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (untaken_ == 0) {  // else it would overtake what came before
      lock.unlock();
      if (hand_over(frame)) return;
      lock.lock();
    }
    untaken_ += frame.bytes();
  }
  fresh.push_back({id, Event::What::kFrame, std::move(frame), 0, {}});
}

// Whether it is of a query. These have no order among other frames.
bool Stream::take_query_frame(Frame& frame) {
  switch (static_cast<Kind>(frame.header.kind)) {
    case Kind::kQuery: {
      if ((frame.header.flags & kFlagArena) != 0) throw ProtocolError("query: expected its payload behind its head");
      has_queries_ = true;
      queries_served_.fetch_add(1, std::memory_order_relaxed);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        untaken_ += frame.bytes();
      }
      queries_.server->take(shared_from_this(), std::move(frame));
      return true;
    }
    case Kind::kResponse:
    case Kind::kError:
      queries_.client->answered(shared_from_this(), std::move(frame));
      return true;
    case Kind::kCancel:
      queries_.server->cancel(id, frame.header.request_id);
      return true;
    default:
      return false;
  }
}

// Whether a frame went to a thread that waits for it.
bool Stream::hand_over(Frame& frame) {
  const bool is_answer = frame.header.kind == static_cast<uint8_t>(Kind::kResponse) ||
                         (frame.header.kind == static_cast<uint8_t>(Kind::kError) && frame.header.request_id != 0);
  return is_answer && !is_in_arena(frame) && answers_.offer(frame);
}

void Stream::give_to(Reader next) {
  if (next != reader_) {
    const Reader before = std::exchange(reader_, next);
    if (before == Reader::kLoop) mailbox_->loop.remove(socket_);
    if (next == Reader::kLoop && !mailbox_->loop.add(socket_, id)) {
      end_ = message("it cannot be watched: ", std::strerror(errno));
      reader_ = Reader::kNobody;
    }
    // The engine's thread watches for itself, and sees to the end.
    if (before == Reader::kEngine || reader_ == Reader::kEngine || reader_ == Reader::kNobody)
      mailbox_->queue_for_engine(shared_from_this());
  }
  expect();
}

// TCP would wake the engine's thread for every few packets of a large payload.
void Stream::expect() {
  const bool is_far = reader_ == Reader::kEngine && decoder_.missing_payload_bytes() > kLeastBytes;
  const int least = is_far ? kLeastBytes : 1;
  if (is_tcp_ && least != least_bytes_ && setsockopt(socket_, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0)
    least_bytes_ = least;
}

// --- waiting for an answer -------------------------------------------------------------------------------------------

std::optional<Frame> Stream::await_answer(uint64_t request_id, Clock::time_point deadline,
                                          const std::function<void()>& check_signals) {
  try {
    read_until_settled(request_id, deadline, check_signals);
    return answers_.wait(request_id, deadline, check_signals);
  } catch (...) {
    if (std::optional<Frame> frame = answers_.take(request_id)) {  // the thread goes elsewhere: it is the loop's again
      {
        std::lock_guard<std::mutex> lock(mutex_);
        untaken_ += frame->bytes();
      }
      std::vector<Event> events;
      events.push_back({id, Event::What::kFrame, std::move(*frame), 0, {}});
      mailbox_->queue_for_loop(events);
    }
    throw;
  }
}

bool Stream::release_answer(uint64_t request_id) {
  const bool is_released = answers_.release(request_id);
  if (is_polled_) to_waiter_->ring();
  return is_released;
}

// Reads as long as it is this thread's turn and its answer has not come.
void Stream::read_until_settled(uint64_t request_id, Clock::time_point deadline,
                                const std::function<void()>& check_signals) {
  if (!begin_waiting()) return;
  struct Turn {
    Stream& stream;
    ~Turn() { stream.end_waiting(); }
  } turn{*this};
  pollfd places[] = {{socket_, POLLIN, 0}, {to_waiter_->fd(), POLLIN, 0}};
  while (!answers_.is_settled(request_id)) {
    const Clock::duration left = deadline - Clock::now();
    if (left <= Clock::duration::zero()) return;
    const timespec limit = as_timespec(left);
    if (ppoll(places, 2, &limit, nullptr) <= 0) check_signals();  // one may have ended it
    if (places[1].revents != 0) to_waiter_->hush();
    if (!read_as(Reader::kWaiter)) return;
  }
}

bool Stream::begin_waiting() {
  std::lock_guard<std::mutex> lock(receiving_);
  // One thread at a time, until it ends: one that lost its turn may be about to do so, and would take the bell and the
  // turn of the next.
  if (reader_ != Reader::kLoop || is_polled_) return false;
  try {
    if (to_waiter_ == nullptr) to_waiter_ = std::make_unique<Bell>();
  } catch (const std::system_error&) {  // no descriptors are left: others read
    return false;
  }
  is_polled_ = true;
  give_to(Reader::kWaiter);
  return true;
}

void Stream::end_waiting() {
  std::lock_guard<std::mutex> lock(receiving_);
  is_polled_ = false;
  if (is_shut_) ::close(socket_);
  if (reader_ != Reader::kWaiter) return;
  is_busy_ = answers_.count() > 1;  // then others wait, too, who are not to wait for the loop
  give_to(is_busy_ || has_queries_ ? Reader::kEngine : Reader::kLoop);
}

// --- the engine's thread ---------------------------------------------------------------------------------------------

std::string Stream::go_on() {
  std::lock_guard<std::mutex> lock(receiving_);
  if (reader_ != Reader::kNobody || is_malformed_ || is_shut_ || !end_.empty()) return end_;
  std::vector<Event> fresh;
  const Reader next = deliver(fresh, has_queries_ ? Reader::kEngine : Reader::kLoop);
  mailbox_->queue_for_loop(fresh);
  give_to(next);
  return end_;
}

Heartbeat::Verdict Stream::beat(Clock::time_point now, bool forgive) {
  read_as(Reader::kEngine);  // the loop may be busy; and fewer bytes than are waited for are a sign of life, too
  std::lock_guard<std::mutex> lock(receiving_);
  if (reader_ == Reader::kEngine && !is_busy_ && !has_queries_ && decoder_.missing_payload_bytes() == 0)
    give_to(Reader::kLoop);
  is_busy_ = false;
  if (forgive || reader_ == Reader::kNobody) heartbeat_.forgive(now);
  if (!beats_) return {};
  return heartbeat_.check(now, last_received_, outbox_.last_progress(), outbox_.bytes());
}

bool Stream::is_engines() {
  std::lock_guard<std::mutex> lock(receiving_);
  return reader_ == Reader::kEngine;
}

void Stream::shut() {
  is_closed_ = true;
  std::lock_guard<std::mutex> lock(receiving_);
  if (reader_ == Reader::kLoop) mailbox_->loop.remove(socket_);
  reader_ = Reader::kNobody;
  is_shut_ = true;
  if (!is_polled_) {
    ::close(socket_);
    return;
  }
  shutdown(socket_, SHUT_RDWR);
  to_waiter_->ring();
}

}  // namespace gld::rpc

#include "rpc/query_client.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "rpc/msgpack.h"
#include "rpc/stream.h"

namespace gld::rpc {
namespace {

uint32_t milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(left, 1, UINT32_MAX));
}

void call_off(Stream& stream, uint64_t query) {
  Header header;
  header.kind = static_cast<uint8_t>(Kind::kCancel);
  header.request_id = query;
  stream.send_owned(pack_frame(header, "\x90", {}), {});  // an empty list
}

}  // namespace

uint64_t QueryClient::ask(const std::shared_ptr<Stream>& stream, const std::string& service, const OutgoingValue& query,
                          Clock::time_point deadline, QueryCallback callback) {
  Header header;
  header.kind = static_cast<uint8_t>(Kind::kQuery);
  header.request_id = next_id_.fetch_add(1, std::memory_order_relaxed) | kQueryBit;
  header.payload_bytes = query.payload_bytes();
  header.deadline_ms = milliseconds_until(deadline);
  msgpack::Writer meta;
  meta.list(1);
  meta.text(service);
  std::string frame = pack_frame(header, meta.written(), query.head);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pending_.emplace(header.request_id, Pending{stream, deadline, std::move(callback)});
  }
  try {
    stream->send_query(std::move(frame), query.segments);
  } catch (...) {
    take(header.request_id, 0);  // the caller is told here
    throw;
  }
  // Its end was told before this query was pending, or is still to be told.
  if (stream->is_closed()) closed(stream->id, "connection closed");
  return header.request_id;
}

std::optional<QueryClient::Pending> QueryClient::take(uint64_t query, uint64_t stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pending_.find(query);
  if (found == pending_.end() || (stream != 0 && found->second.stream->id != stream)) return std::nullopt;
  std::optional<Pending> pending = std::move(found->second);
  pending_.erase(found);
  return pending;
}

bool QueryClient::forget(uint64_t query) {
  const std::optional<Pending> pending = take(query, 0);
  if (pending) call_off(*pending->stream, query);
  return pending.has_value();
}

void QueryClient::answered(const std::shared_ptr<Stream>& stream, Frame frame) {
  const std::optional<Pending> pending = take(frame.header.request_id, stream->id);
  if (!pending) {  // called off, or past its deadline
    if ((frame.header.flags & kFlagArena) != 0) stream->give_back(read_place(split_head(frame.head).first));
    return;
  }
  const bool is_answer = frame.header.kind == static_cast<uint8_t>(Kind::kResponse);
  pending->callback({is_answer ? QueryOutcome::What::kAnswered : QueryOutcome::What::kFailed, std::move(frame), {}});
}

void QueryClient::closed(uint64_t stream, const std::string& why) {
  std::vector<Pending> lost;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto entry = pending_.begin(); entry != pending_.end();) {
      if (entry->second.stream->id != stream) {
        ++entry;
        continue;
      }
      lost.push_back(std::move(entry->second));
      entry = pending_.erase(entry);
    }
  }
  for (const Pending& each : lost) each.callback({QueryOutcome::What::kLost, {}, why});
}

void QueryClient::expire(Clock::time_point now) {
  std::vector<uint64_t> late;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, each] : pending_)
      if (each.deadline < now) late.push_back(id);
  }
  for (const uint64_t id : late)
    if (const std::optional<Pending> pending = take(id, 0)) {
      call_off(*pending->stream, id);
      pending->callback({QueryOutcome::What::kLate, {}, {}});
    }
}

}  // namespace gld::rpc

#include "serving/batch_server.h"

#include <optional>
#include <utility>
#include <vector>

#include "common/error.h"
#include "rpc/failure.h"
#include "rpc/frame.h"
#include "rpc/msgpack.h"

namespace gld::serving {
namespace {

using Value = rpc::msgpack::Item;
using rpc::msgpack::Reader;
using rpc::msgpack::Type;

// Sends a batch from where it lies.
class Sending : public Receiver {
 public:
  explicit Sending(std::shared_ptr<rpc::Reply> reply) : reply_(std::move(reply)) {}
  void take(serving::Item item) override {
    rpc::OutgoingValue value{std::move(item.head), {}, {item.region, item.offset}};
    value.segments.push_back({item.payload, item.payload_bytes, std::move(item.owner), nullptr});
    reply_->send(std::move(value));
  }
  void fail(const std::string& failure) override { reply_->fail(failure); }

 private:
  const std::shared_ptr<rpc::Reply> reply_;
};

uint64_t natural(Reader& reader, const char* what) {
  const Value item = reader.next();
  if (item.type != Type::kInteger || item.is_negative)
    throw rpc::ProtocolError(message("query: expected ", what, ", got ", rpc::msgpack::describe(item)));
  return item.integer;
}

int64_t integer(const Value& item, const char* what) {
  if (item.type != Type::kInteger || (!item.is_negative && item.integer > INT64_MAX))
    throw rpc::ProtocolError(message("query: expected ", what, ", got ", rpc::msgpack::describe(item)));
  return static_cast<int64_t>(item.integer);
}

}  // namespace

void BatchServer::add(uint64_t producer, std::shared_ptr<BatchShelf> shelf, std::string client_key, std::string owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  producers_[producer] = {std::move(shelf), std::move(client_key), std::move(owner)};
}

void BatchServer::remove(uint64_t producer) {
  Served served;  // dies without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = producers_.find(producer);
  if (found == producers_.end()) return;
  served = std::move(found->second);
  producers_.erase(found);
}

void BatchServer::end(std::string failure) {
  std::lock_guard<std::mutex> lock(mutex_);
  over_ = std::move(failure);
}

void BatchServer::begin(const rpc::IncomingValue& query, const std::shared_ptr<rpc::Reply>& reply) {
  Reader reader = Reader::of_value(query.head);
  const Value list = reader.next();
  if (list.type != Type::kList || list.count != 4)
    throw rpc::ProtocolError("query: expected [producer, run, index, oldest]");
  const uint64_t producer = natural(reader, "the id of a producer");
  const int64_t run = integer(reader.next(), "a run"), index = integer(reader.next(), "a batch");
  const Value reads = reader.next();
  std::optional<int64_t> oldest;
  if (reads.type != Type::kNil) oldest = integer(reads, "a batch, or nil");
  std::shared_ptr<BatchShelf> shelf;
  std::string over;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over = over_;
    const auto found = producers_.find(producer);
    if (found != producers_.end()) {
      if (found->second.client_key != query.asker)
        throw InvalidArgument(message("producer_id: expected one that this client has opened, got ", producer,
                                      ", which is ", found->second.owner, "'s"));
      shelf = found->second.shelf;
    }
  }
  if (!over.empty()) return reply->fail(over);
  if (shelf == nullptr)
    return reply->fail(
        rpc::pack_error("ProducerGoneError", message("producer_id: there is no producer ", producer, " (any more)")));
  const uint64_t fetch = shelf->fetch(run, index, oldest, std::make_shared<Sending>(reply));
  reply->when_called_off([weak = std::weak_ptr<BatchShelf>(shelf), fetch] {
    if (const auto waiting = weak.lock()) waiting->forget(fetch);
  });
}

std::string fetch_query(uint64_t producer, int64_t run, int64_t index, std::optional<int64_t> oldest) {
  rpc::msgpack::Writer out;
  out.list(4);
  out.natural(producer);
  out.integer(run);
  out.integer(index);
  oldest ? out.integer(*oldest) : out.nil();
  return out.written();
}

}  // namespace gld::serving

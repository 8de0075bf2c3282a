#include "rpc/lending.h"

#include "common/error.h"
#include "rpc/msgpack.h"

namespace gld::rpc {
namespace {

using msgpack::Item;
using msgpack::Reader;
using msgpack::Type;

// A place of a list: [number, offset], or nothing where it is another.
std::optional<std::pair<uint64_t, uint64_t>> place_of(Reader place) {
  const Item list = place.next();
  if (list.type != Type::kList || list.count != 2) return std::nullopt;
  const Item number = place.next(), offset = place.next();
  for (const Item& item : {number, offset})
    if (item.type != Type::kInteger || item.is_negative) return std::nullopt;
  return std::pair(number.integer, offset.integer);
}

}  // namespace

void Lending::accept(uint64_t region, uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_closed_) numbers_[region] = number;
}

void Lending::forget(uint64_t region) {
  std::lock_guard<std::mutex> lock(mutex_);
  numbers_.erase(region);
}

std::optional<std::pair<uint64_t, uint64_t>> Lending::lend(SharedPlace place, std::shared_ptr<const void> owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = numbers_.find(place.region);
  if (found == numbers_.end() || is_closed_) return std::nullopt;
  const std::pair<uint64_t, uint64_t> where(found->second, place.offset);
  if (lent_.count(where) != 0) return std::nullopt;
  lent_[where] = {place, std::move(owner)};
  ++count_;
  return where;
}

bool Lending::may_offer(uint64_t region) {
  std::lock_guard<std::mutex> lock(mutex_);
  return !is_closed_ && offered_.insert(region).second;
}

void Lending::take_back(std::pair<uint64_t, uint64_t> place) {
  Lent back;  // dies without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = lent_.find(place);
  if (found == lent_.end()) return;
  back = std::move(found->second);
  lent_.erase(found);
}

bool Lending::take_back(Frame& frame) {
  std::vector<Lent> back;  // dies without the lock
  const std::string_view meta = split_head(frame.head).first;
  Reader reader = Reader::of_value(meta);
  const Item list = reader.next();
  if (list.type != Type::kList) return false;
  msgpack::Writer rest;
  size_t num_left = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < list.count; ++i) {
      const Reader place = reader.value();
      const auto where = place_of(place);
      const auto found = where ? lent_.find(*where) : lent_.end();
      if (found != lent_.end()) {
        back.push_back(std::move(found->second));
        lent_.erase(found);
      } else {
        rest.append(place.left());
        ++num_left;
      }
    }
  }
  if (back.empty()) return false;
  if (num_left == 0) return true;
  msgpack::Writer left;
  left.list(num_left);
  left.append(rest.written());
  const std::string whole = pack_frame(frame.header, left.written(), {});
  const Header header = read_header(reinterpret_cast<const uint8_t*>(whole.data()));
  frame.header = header;
  frame.head = whole.substr(kHeaderBytes, header.head_bytes);
  return false;
}

uint64_t Lending::count() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return count_;
}

std::vector<Lending::Lent> Lending::close() {
  std::vector<Lent> out;
  std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  numbers_.clear();
  for (auto& entry : lent_) out.push_back(std::move(entry.second));
  lent_.clear();
  return out;
}

std::string pack_place(std::pair<uint64_t, uint64_t> place) {
  msgpack::Writer out;
  out.list(1);
  out.list(2);
  out.natural(place.first);
  out.natural(place.second);
  return out.written();
}

std::pair<uint64_t, uint64_t> read_place(std::string_view meta) {
  Reader reader = Reader::of_value(meta);
  const Item list = reader.next();
  if (list.type == Type::kList && list.count == 1)
    if (const auto place = place_of(reader.value())) return *place;
  throw ProtocolError("answer: expected the place where its payload is lent");
}

}  // namespace gld::rpc

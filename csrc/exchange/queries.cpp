#include "exchange/queries.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "routing/narrowed.h"
#include "rpc/frame.h"
#include "rpc/msgpack.h"
#include "sampling/methods.h"

namespace gld::exchange {
namespace {

using rpc::IncomingValue;
using rpc::OutgoingValue;
using rpc::ProtocolError;
using rpc::msgpack::Item;
using rpc::msgpack::Reader;
using rpc::msgpack::Type;
using rpc::msgpack::Writer;

constexpr size_t kMaxHeadBytes = 60 << 10;  // a frame has a head of its own before this one
constexpr size_t kMaxDimensions = 64;       // what torch has
constexpr int kLastTimeRule = static_cast<int>(TimeRule::kLatest);

// --- dtypes: one byte of the head ------------------------------------------------------------------------------------

// DLPack's kinds beyond those of common/tensor.h: rows of 8-bit floats are copied as they are.
constexpr int kFirstFloat8 = 10, kLastFloat8 = 14;

bool exists(DType dtype) {
  const int bits = dtype.bits;
  switch (dtype.kind) {
    case Kind::kInt:
    case Kind::kUInt:
      return bits == 8 || bits == 16 || bits == 32 || bits == 64;
    case Kind::kFloat:
      return bits == 16 || bits == 32 || bits == 64;
    case Kind::kBfloat:
      return bits == 16;
    case Kind::kComplex:
      return bits == 32 || bits == 64 || bits == 128;
    case Kind::kBool:
      return bits == 8;
  }
  const int kind = static_cast<int>(dtype.kind);
  return bits == 8 && kind >= kFirstFloat8 && kind <= kLastFloat8;
}

// The kind, and behind it three bits with the logarithm of the bytes of an element.
uint64_t code_of(DType dtype) {
  if (!exists(dtype)) throw InvalidArgument(message("dtype: ", to_string(dtype), " cannot be sent"));
  return static_cast<uint64_t>(dtype.kind) << 3 | static_cast<uint64_t>(__builtin_ctz(dtype.bits / 8));
}

// The dtype of a code; nothing where there is none.
std::optional<DType> dtype_of(uint64_t code) {
  const DType dtype{static_cast<Kind>(code >> 3), static_cast<uint8_t>(8u << (code & 7))};
  if (code > 0x7f || (code & 7) > 4 || !exists(dtype)) return std::nullopt;
  return dtype;
}

// --- encoding --------------------------------------------------------------------------------------------------------

// Appends what a query or an answer consists of to a head, and tensors to the segments.
class Encoder {
 public:
  void list(size_t count) { head_.list(count); }
  void natural(uint64_t value) { head_.natural(value); }
  void integer(int64_t value) { head_.integer(value); }
  void boolean(bool value) { head_.boolean(value); }
  void text(const std::string& value) { head_.text(value); }

  // [dtype, extents...]; nothing where it is undefined.
  void tensor(const Tensor& tensor) {
    if (!tensor.defined()) return head_.nil();
    head_.list(1 + tensor.shape.size());
    head_.natural(code_of(tensor.dtype));
    for (const int64_t extent : tensor.shape) head_.natural(static_cast<uint64_t>(extent));
    if (const size_t bytes = tensor.nbytes()) segments_.push_back({tensor.data, bytes, tensor.owner, nullptr});
  }

  void answered(Answered each) {
    const size_t before = segments_.size();
    tensor(each.tensor);
    if (each.source != nullptr && segments_.size() > before)
      segments_.back() = {nullptr, segments_.back().bytes, nullptr, std::move(each.source)};
  }

  OutgoingValue finish() {
    if (head_.written().size() > kMaxHeadBytes)
      throw InvalidArgument(message("query: its head has ", head_.written().size(), " bytes, expected at most ",
                                    kMaxHeadBytes, ": it has too many parts"));
    return {head_.written(), std::move(segments_)};
  }

 private:
  Writer head_;
  std::vector<rpc::Segment> segments_;
};

void encode_body(const HopQuery& query, Encoder& out) {
  out.boolean(query.with_edge_ids);
  out.list(query.parts.size());
  for (const HopQuery::Part& part : query.parts) {
    out.list(9);
    out.integer(part.edge_type);
    out.integer(part.draw.fanout);
    out.natural(static_cast<uint64_t>(part.draw.how.method));
    out.boolean(part.draw.how.replace);
    out.natural(static_cast<uint64_t>(part.draw.how.times));
    out.natural(part.draw.key);
    out.tensor(part.ids);
    out.tensor(part.trees);
    out.tensor(part.times);
  }
}

void encode_parts(const std::vector<RowsQuery::Part>& parts, Encoder& out) {
  out.list(parts.size());
  for (const RowsQuery::Part& part : parts) {
    out.list(2);
    out.text(part.store);
    out.tensor(part.ids);
  }
}

void encode_body(const RowsQuery& query, Encoder& out) { encode_parts(query.parts, out); }
void encode_body(const OwnedQuery& query, Encoder& out) { encode_parts(query.parts, out); }

void encode_body(const HasEdgesQuery& query, Encoder& out) {
  out.integer(query.edge_type);
  out.tensor(query.ids);
  out.tensor(query.neighbors);
}

void encode_body(const InducedQuery& query, Encoder& out) {
  out.boolean(query.with_edge_ids);
  out.list(query.parts.size());
  for (const InducedQuery::Part& part : query.parts) {
    out.list(3);
    out.integer(part.edge_type);
    out.integer(part.member_type);
    out.tensor(part.ids);
  }
  out.list(query.members.size());
  for (const Tensor& members : query.members) out.tensor(members);
}

void encode_body(const DegreesQuery& query, Encoder& out) {
  out.integer(query.edge_type);
  out.tensor(query.ids);
}

// Items of the list that a query is: its kind, which is its place among those of Query, and its body.
constexpr size_t kItems[] = {3, 2, 2, 4, 4, 3};
static_assert(std::size(kItems) == std::variant_size_v<Query>);

// --- decoding --------------------------------------------------------------------------------------------------------

// What a tensor without bytes is a view of.
std::shared_ptr<void> no_bytes() {
  static char nothing;
  return std::shared_ptr<void>(std::shared_ptr<void>(), &nothing);
}

// Reads a head item by item and hands out the payload tensor by tensor. The head is one whole value, so counts of
// lists are bounded by its bytes.
class Decoder {
 public:
  // `what` it is, for errors.
  Decoder(const IncomingValue& value, const char* what) : what_(what), value_(value), head_(whole(value.head)) {}

  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... why) const {
    throw ProtocolError(message(what_, ": ", why...));
  }

  size_t list() { return expect(Type::kList, "a list").count; }

  void list_of(size_t count) {
    const size_t found = list();
    if (found != count) refuse("expected a list of ", count, ", got one of ", found);
  }

  uint64_t natural(uint64_t most = std::numeric_limits<uint64_t>::max()) {
    const Item item = expect(Type::kInteger, "a number");
    if (item.is_negative || item.integer > most) refuse("expected a number of 0 to ", most, ", got ", describe(item));
    return item.integer;
  }

  int64_t integer(int64_t least = std::numeric_limits<int64_t>::min(),
                  int64_t most = std::numeric_limits<int64_t>::max()) {
    const Item item = expect(Type::kInteger, "a number");
    const auto found = static_cast<int64_t>(item.integer);
    if ((!item.is_negative && found < 0) || found < least || found > most)
      refuse("expected a number of ", least, " to ", most, ", got ", describe(item));
    return found;
  }

  // The number of a type. Whether there is such a type is for who looks it up.
  int type() { return static_cast<int>(integer(std::numeric_limits<int>::min(), std::numeric_limits<int>::max())); }
  bool boolean() { return expect(Type::kBoolean, "true or false").integer != 0; }
  std::string text() { return std::string(expect(Type::kText, "a text").bytes); }

  Tensor tensor() {
    const Item item = head_.next();
    if (item.type == Type::kNil) return {};
    if (item.type != Type::kList || item.count < 1 || item.count > 1 + kMaxDimensions)
      refuse("expected a tensor's dtype and shape, got ", describe(item));
    Tensor tensor;
    const uint64_t code = natural();
    const std::optional<DType> dtype = dtype_of(code);
    if (!dtype) refuse("unknown dtype ", code);
    tensor.dtype = *dtype;
    auto bytes = static_cast<uint64_t>(tensor.dtype.size());
    bool is_empty = false;
    for (size_t d = 1; d < item.count; ++d) {
      const uint64_t extent = natural(std::numeric_limits<int64_t>::max());
      // As if there were one of each: so products of extents never overflow, in whatever order they are made.
      if (__builtin_mul_overflow(bytes, std::max<uint64_t>(extent, 1), &bytes) || bytes >> 62)
        refuse("a tensor's shape has too many elements");
      is_empty |= extent == 0;
      tensor.shape.push_back(static_cast<int64_t>(extent));
    }
    place(tensor, is_empty ? 0 : bytes);
    return tensor;
  }

  // int32 or int64 [n].
  Tensor index_vector(const char* name) {
    Tensor found = tensor();
    if (!found.defined() || found.shape.size() != 1 || (found.dtype != kInt32 && found.dtype != kInt64))
      refuse("expected ", name, " as a vector of int32 or int64");
    return found;
  }

  // The same as long as the ids, or undefined.
  Tensor optional_per_id(const char* name, const Tensor& ids) {
    Tensor found = tensor();
    if (!found.defined()) return found;
    const bool fits = found.dtype == kInt64 || found.dtype == kInt32;
    if (!fits || found.shape != ids.shape)
      refuse("expected ", name, " as a vector of int32 or int64 with one for each of ", ids.numel(), " ids");
    return found;
  }

  void finish() const {
    if (!head_.is_at_end()) refuse("items follow");
    if (used_ != value_.payload_bytes)
      refuse("its tensors have ", used_, " bytes, and its payload has ", value_.payload_bytes);
  }

 private:
  Reader whole(std::string_view head) const {
    if (head.size() > kMaxHeadBytes) refuse("expected a head of at most ", kMaxHeadBytes, " bytes, got ", head.size());
    return Reader::of_value(head);
  }

  Item expect(Type type, const char* what) {
    const Item item = head_.next();
    if (item.type != type) refuse("expected ", what, ", got ", describe(item));
    return item;
  }

  // The next `bytes` of the payload, as the tensor's memory.
  void place(Tensor& tensor, uint64_t bytes) {
    const uint64_t taken = rpc::padded(bytes);
    if (taken > value_.payload_bytes - used_)
      refuse("a tensor of ", bytes, " bytes begins at ", used_, " of a payload of ", value_.payload_bytes);
    char* const data = static_cast<char*>(value_.payload) + used_;
    used_ += taken;
    const size_t alignment = std::min<size_t>(tensor.dtype.size(), alignof(std::max_align_t));
    if (bytes == 0) {
      tensor.owner = no_bytes();
      tensor.data = tensor.owner.get();
    } else if (reinterpret_cast<uintptr_t>(data) % alignment != 0) {
      const Tensor aligned = empty(tensor.shape, tensor.dtype);
      std::memcpy(aligned.data, data, bytes);
      tensor = aligned;
    } else {
      tensor.data = data;
      // A tensor is there by having an owner, also where the caller keeps the memory.
      tensor.owner = value_.owner != nullptr ? value_.owner : std::shared_ptr<void>(std::shared_ptr<void>(), data);
    }
  }

  const char* const what_;
  const IncomingValue& value_;
  Reader head_;
  uint64_t used_ = 0;  // bytes of the payload that tensors were made of; at most payload_bytes
};

void decode_body(Decoder& in, HopQuery& query) {
  query.with_edge_ids = in.boolean();
  for (size_t left = in.list(); left > 0; --left) {
    in.list_of(9);
    HopQuery::Part part;
    part.edge_type = in.type();
    part.draw.fanout = in.integer();
    part.draw.how.method = static_cast<Method>(in.natural(Methods::kTraits.size() - 1));
    part.draw.how.replace = in.boolean();
    part.draw.how.times = static_cast<TimeRule>(in.natural(kLastTimeRule));
    part.draw.key = in.natural();
    part.draw.with_edge_ids = query.with_edge_ids;
    part.ids = in.index_vector("ids");
    part.trees = in.optional_per_id("trees", part.ids);
    part.times = in.optional_per_id("times", part.ids);
    query.parts.push_back(std::move(part));
  }
}

void decode_parts(Decoder& in, std::vector<RowsQuery::Part>& parts) {
  for (size_t left = in.list(); left > 0; --left) {
    in.list_of(2);
    RowsQuery::Part part;
    part.store = in.text();
    part.ids = in.index_vector("ids");
    parts.push_back(std::move(part));
  }
}

void decode_body(Decoder& in, RowsQuery& query) { decode_parts(in, query.parts); }
void decode_body(Decoder& in, OwnedQuery& query) { decode_parts(in, query.parts); }

void decode_body(Decoder& in, HasEdgesQuery& query) {
  query.edge_type = in.type();
  query.ids = in.index_vector("ids");
  query.neighbors = in.index_vector("neighbors");
  if (query.neighbors.shape != query.ids.shape)
    in.refuse("expected a neighbor for each of ", query.ids.numel(), " ids, got ", query.neighbors.numel());
}

void decode_body(Decoder& in, InducedQuery& query) {
  query.with_edge_ids = in.boolean();
  for (size_t left = in.list(); left > 0; --left) {
    in.list_of(3);
    InducedQuery::Part part;
    part.edge_type = in.type();
    part.member_type = in.type();
    part.ids = in.index_vector("ids");
    query.parts.push_back(std::move(part));
  }
  for (size_t left = in.list(); left > 0; --left) query.members.push_back(in.index_vector("members"));
}

void decode_body(Decoder& in, DegreesQuery& query) {
  query.edge_type = in.type();
  query.ids = in.index_vector("ids");
}

template <size_t kKind = 0>
Query decode_kind(Decoder& in, size_t kind, size_t count) {
  if constexpr (kKind < std::variant_size_v<Query>) {
    if (kind != kKind) return decode_kind<kKind + 1>(in, kind, count);
    if (count != kItems[kKind]) in.refuse("expected a list of ", kItems[kKind], ", got one of ", count);
    std::variant_alternative_t<kKind, Query> query;
    decode_body(in, query);
    in.finish();
    return query;
  } else {
    in.refuse("unknown kind ", kind);
  }
}

}  // namespace

OutgoingValue encode_query(const Query& query) {
  Encoder out;
  out.list(kItems[query.index()]);
  out.natural(query.index());
  std::visit([&](const auto& body) { encode_body(body, out); }, query);
  return out.finish();
}

Query decode_query(const IncomingValue& value) {
  Decoder in(value, "query");
  const size_t count = in.list();
  if (count == 0) in.refuse("expected a kind, got an empty list");
  return decode_kind(in, in.natural(), count);
}

OutgoingValue encode_answer(std::vector<Answered> tensors) {
  Encoder out;
  out.list(tensors.size());
  for (Answered& each : tensors) out.answered(std::move(each));
  return out.finish();
}

OutgoingValue encode_answer(const std::vector<Tensor>& tensors) {
  std::vector<Answered> answered;
  for (const Tensor& tensor : tensors) answered.push_back({tensor, nullptr});
  return encode_answer(std::move(answered));
}

std::vector<Tensor> decode_answer(const IncomingValue& value, size_t count) {
  Decoder in(value, "answer");
  in.list_of(count);
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < count; ++i) tensors.push_back(in.tensor());
  in.finish();
  return tensors;
}

Tensor fewest_bytes(const Tensor& ids) {
  check_index_vector(ids, "ids");
  if (ids.dtype == kInt32) return ids;
  const Tensor narrow = narrowed_ids(ids);
  return narrow.defined() ? narrow : ids;
}

}  // namespace gld::exchange

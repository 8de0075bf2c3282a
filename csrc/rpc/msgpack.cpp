#include "rpc/msgpack.h"

#include <cstring>
#include <type_traits>

#include "common/error.h"
#include "rpc/frame.h"

namespace gld::rpc::msgpack {
namespace {

// msgpack is big-endian.
template <typename T>
T reversed(T value) {
  unsigned char bytes[sizeof value], turned[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  for (size_t i = 0; i < sizeof value; ++i) turned[i] = bytes[sizeof value - 1 - i];
  std::memcpy(&value, turned, sizeof value);
  return value;
}

[[noreturn]] void refuse(const char* why) { throw ProtocolError(message("malformed msgpack: ", why)); }

}  // namespace

// --- Writer ----------------------------------------------------------------------------------------------------------

template <typename T>
void Writer::put_number(uint8_t tag, T value) {
  const T turned = reversed(value);
  put(tag);
  out_.append(reinterpret_cast<const char*>(&turned), sizeof turned);
}

void Writer::put_length(uint8_t tag8, uint8_t tag16, size_t length) {
  if (tag8 != 0 && length <= 0xff) return put_number(tag8, static_cast<uint8_t>(length));
  if (length <= 0xffff) return put_number(tag16, static_cast<uint16_t>(length));
  if (length > 0xffff'ffff) throw InvalidArgument(message("obj: cannot be encoded: ", length, " items or bytes"));
  put_number(static_cast<uint8_t>(tag16 + 1), static_cast<uint32_t>(length));
}

void Writer::natural(uint64_t value) {
  if (value < 0x80) return put(static_cast<uint8_t>(value));
  if (value <= 0xff) return put_number(0xcc, static_cast<uint8_t>(value));
  if (value <= 0xffff) return put_number(0xcd, static_cast<uint16_t>(value));
  if (value <= 0xffff'ffff) return put_number(0xce, static_cast<uint32_t>(value));
  put_number(0xcf, value);
}

void Writer::integer(int64_t value) {
  if (value >= 0) return natural(static_cast<uint64_t>(value));
  if (value >= -0x20) return put(static_cast<uint8_t>(value));
  if (value >= INT8_MIN) return put_number(0xd0, static_cast<int8_t>(value));
  if (value >= INT16_MIN) return put_number(0xd1, static_cast<int16_t>(value));
  if (value >= INT32_MIN) return put_number(0xd2, static_cast<int32_t>(value));
  put_number(0xd3, value);
}

void Writer::real(double value) { put_number(0xcb, value); }

void Writer::text(std::string_view value) {
  if (value.size() < 0x20) {
    put(static_cast<uint8_t>(0xa0 | value.size()));
  } else {
    put_length(0xd9, 0xda, value.size());
  }
  out_.append(value);
}

void Writer::bytes(std::string_view value) {
  put_length(0xc4, 0xc5, value.size());
  out_.append(value);
}

void Writer::list(size_t count) {
  if (count < 0x10) return put(static_cast<uint8_t>(0x90 | count));
  put_length(0, 0xdc, count);
}

void Writer::map(size_t count) {
  if (count < 0x10) return put(static_cast<uint8_t>(0x80 | count));
  put_length(0, 0xde, count);
}

void Writer::extension(int8_t code, std::string_view content) {
  switch (content.size()) {
    case 1:
    case 2:
    case 4:
    case 8:
    case 16:
      put(static_cast<uint8_t>(0xd4 + __builtin_ctzll(content.size())));
      break;
    default:
      put_length(0xc7, 0xc8, content.size());
  }
  put(static_cast<uint8_t>(code));
  out_.append(content);
}

// --- Reader ----------------------------------------------------------------------------------------------------------

std::string describe(const Item& item) {
  switch (item.type) {
    case Type::kNil:
      return "nothing";
    case Type::kBoolean:
      return item.integer != 0 ? "true" : "false";
    case Type::kInteger:
      return item.is_negative ? message(static_cast<int64_t>(item.integer)) : message(item.integer);
    case Type::kReal:
      return message(item.real);
    case Type::kText:
      return "a text";
    case Type::kBytes:
      return "bytes";
    case Type::kList:
      return message("a list of ", item.count);
    case Type::kMap:
      return "a map";
    case Type::kExtension:
      return message("extension ", int{item.code});
  }
  return "";
}

Reader Reader::of_value(std::string_view bytes) {
  Reader rest(bytes);
  rest.skip(0);
  if (!rest.is_at_end()) refuse("bytes follow the value");
  return Reader(bytes);
}

Reader Reader::value() {
  const std::string_view before = left_;
  skip(0);
  return Reader(before.substr(0, before.size() - left_.size()));
}

void Reader::skip(int depth) {
  const Item item = next();
  if (item.type != Type::kList && item.type != Type::kMap) return;
  if (depth >= kMaxDepth) refuse("nested too deeply");
  const size_t held = item.type == Type::kMap ? 2 * item.count : item.count;
  for (size_t i = 0; i < held; ++i) skip(depth + 1);
}

std::string_view Reader::take(size_t count) {
  if (count > left_.size()) refuse("it ends early");
  const std::string_view taken = left_.substr(0, count);
  left_.remove_prefix(count);
  return taken;
}

template <typename T>
T Reader::number() {
  T value;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return reversed(value);
}

Item Reader::natural(uint64_t value) {
  Item item;
  item.type = Type::kInteger;
  item.integer = value;
  return item;
}

Item Reader::signed_integer(int64_t value) {
  Item item = natural(static_cast<uint64_t>(value));
  item.is_negative = value < 0;
  return item;
}

Item Reader::sized(Type type, size_t length) {
  Item item;
  item.type = type;
  if (type == Type::kList || type == Type::kMap) {
    item.count = length;
  } else {
    item.bytes = take(length);
  }
  return item;
}

Item Reader::extension(size_t length) {
  const int8_t code = number<int8_t>();
  Item item = sized(Type::kExtension, length);
  item.code = code;
  return item;
}

Item Reader::next() {
  const uint8_t tag = number<uint8_t>();
  if (tag < 0x80) return natural(tag);
  if (tag < 0x90) return sized(Type::kMap, tag & 0x0f);
  if (tag < 0xa0) return sized(Type::kList, tag & 0x0f);
  if (tag < 0xc0) return sized(Type::kText, tag & 0x1f);
  if (tag >= 0xe0) return signed_integer(static_cast<int8_t>(tag));
  return tagged(tag);
}

Item Reader::tagged(uint8_t tag) {
  Item item;
  switch (tag) {
    case 0xc0:
      return item;
    case 0xc2:
    case 0xc3:
      item.type = Type::kBoolean;
      item.integer = tag & 1;
      return item;
    case 0xc4:
      return sized(Type::kBytes, number<uint8_t>());
    case 0xc5:
      return sized(Type::kBytes, number<uint16_t>());
    case 0xc6:
      return sized(Type::kBytes, number<uint32_t>());
    case 0xc7:
      return extension(number<uint8_t>());
    case 0xc8:
      return extension(number<uint16_t>());
    case 0xc9:
      return extension(number<uint32_t>());
    case 0xca:
      item.type = Type::kReal;
      item.real = number<float>();
      return item;
    case 0xcb:
      item.type = Type::kReal;
      item.real = number<double>();
      return item;
    case 0xcc:
      return natural(number<uint8_t>());
    case 0xcd:
      return natural(number<uint16_t>());
    case 0xce:
      return natural(number<uint32_t>());
    case 0xcf:
      return natural(number<uint64_t>());
    case 0xd0:
      return signed_integer(number<int8_t>());
    case 0xd1:
      return signed_integer(number<int16_t>());
    case 0xd2:
      return signed_integer(number<int32_t>());
    case 0xd3:
      return signed_integer(number<int64_t>());
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8:
      return extension(size_t{1} << (tag - 0xd4));
    case 0xd9:
      return sized(Type::kText, number<uint8_t>());
    case 0xda:
      return sized(Type::kText, number<uint16_t>());
    case 0xdb:
      return sized(Type::kText, number<uint32_t>());
    case 0xdc:
      return sized(Type::kList, number<uint16_t>());
    case 0xdd:
      return sized(Type::kList, number<uint32_t>());
    case 0xde:
      return sized(Type::kMap, number<uint16_t>());
    case 0xdf:
      return sized(Type::kMap, number<uint32_t>());
    default:
      refuse("an unknown tag");
  }
}

}  // namespace gld::rpc::msgpack

// msgpack, as far as the RPC speaks it: a writer, and a reader of bytes that a stranger may have sent.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gld::rpc::msgpack {

// Appends values, each in its shortest form. After list(n) follow n values, after map(n) n keys with a value each.
class Writer {
 public:
  void nil() { put(0xc0); }
  void boolean(bool value) { put(value ? 0xc3 : 0xc2); }
  void integer(int64_t value);
  void natural(uint64_t value);
  void real(double value);
  void text(std::string_view value);
  void bytes(std::string_view value);
  void list(size_t count);
  void map(size_t count);
  // `content` is a value of its own: what a Writer wrote.
  void extension(int8_t code, std::string_view content);
  // Values that are written already.
  void append(std::string_view written) { out_.append(written); }

  const std::string& written() const { return out_; }

 private:
  void put(uint8_t byte) { out_.push_back(static_cast<char>(byte)); }
  template <typename T>
  void put_number(uint8_t tag, T value);
  // The tags of 8, 16 and 32 bits of length stand one behind the other; 0 where there is none of 8.
  void put_length(uint8_t tag8, uint8_t tag16, size_t length);

  std::string out_;
};

enum class Type : uint8_t { kNil, kBoolean, kInteger, kReal, kText, kBytes, kList, kMap, kExtension };

// One value, without those that it holds.
struct Item {
  Type type = Type::kNil;
  bool is_negative = false;  // of kInteger: then `integer` is a two's complement
  int8_t code = 0;           // of kExtension
  uint64_t integer = 0;      // of kInteger, and kBoolean
  double real = 0;
  size_t count = 0;        // values of a kList, pairs of a kMap, that follow
  std::string_view bytes;  // of kText (not checked to be UTF-8), kBytes and kExtension
};

// In words, for messages.
std::string describe(const Item& item);

// Reads values one after the other. The bytes must outlive it and what it gives.
class Reader {
 public:
  // Throws ProtocolError unless the bytes are one whole value, nested no deeper than kMaxDepth. So the items of that
  // value can be read without an end or an invalid byte in between.
  static Reader of_value(std::string_view bytes);
  static constexpr int kMaxDepth = 512;

  // The next value's beginning: what it holds is next. Throws ProtocolError where it is malformed, or at the end.
  Item next();
  // The whole next value, as a reader of its own.
  Reader value();
  bool is_at_end() const { return left_.empty(); }
  // The bytes that were not read yet.
  std::string_view left() const { return left_; }

 private:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  void skip(int depth);
  std::string_view take(size_t count);
  template <typename T>
  T number();
  Item natural(uint64_t value);
  Item signed_integer(int64_t value);
  Item sized(Type type, size_t length);
  Item extension(size_t length);
  Item tagged(uint8_t tag);

  std::string_view left_;
};

}  // namespace gld::rpc::msgpack

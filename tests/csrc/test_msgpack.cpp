// msgpack: what is written is read back, and whatever bytes arrive are a whole value or refused.
#include <cstdint>
#include <random>
#include <string>

#include "check.h"
#include "fuzz_frames.h"
#include "rpc/frame.h"
#include "rpc/msgpack.h"

namespace gld::test {
namespace {

using rpc::ProtocolError;
using rpc::msgpack::Item;
using rpc::msgpack::Reader;
using rpc::msgpack::Type;
using rpc::msgpack::Writer;

Item only(const Writer& out) { return Reader::of_value(out.written()).next(); }

std::string one_of_everything() {
  Writer inner, out;
  inner.list(2);
  inner.natural(7);
  inner.text("inner");
  out.map(2);
  out.text(std::string(40, 'k'));
  out.list(9);
  out.nil();
  out.boolean(true);
  out.integer(-70000);
  out.natural(1 << 20);
  out.real(2.5);
  out.bytes(std::string(300, 'b'));
  out.extension(3, inner.written());
  out.list(20);
  for (int i = 0; i < 20; ++i) out.integer(-i);
  out.map(0);
  out.natural(1);
  out.text("");
  return out.written();
}

}  // namespace

TEST("msgpack: integers at the bounds of their sizes") {
  for (int bits = 0; bits < 64; ++bits) {
    for (int64_t offset = -2; offset <= 2; ++offset) {
      const uint64_t natural = (uint64_t{1} << bits) + static_cast<uint64_t>(offset);
      Writer out;
      out.natural(natural);
      CHECK(only(out).type == Type::kInteger && !only(out).is_negative);
      CHECK_EQUAL(only(out).integer, natural);
      const auto value = static_cast<int64_t>(~natural);
      Writer negative;
      negative.integer(value);
      CHECK_EQUAL(static_cast<int64_t>(only(negative).integer), value);
      CHECK_EQUAL(only(negative).is_negative, value < 0);
    }
  }
}

TEST("msgpack: lengths at the bounds of their sizes") {
  for (const size_t length : {0, 1, 2, 3, 4, 8, 15, 16, 17, 31, 32, 255, 256, 65535, 65536}) {
    const std::string bytes(length, 'x');
    Writer text, blob, extension, list, map;
    text.text(bytes);
    blob.bytes(bytes);
    extension.extension(-5, bytes);
    list.list(length);
    map.map(length);
    for (size_t i = 0; i < length; ++i) list.nil();
    for (size_t i = 0; i < 2 * length; ++i) map.nil();
    CHECK(only(text).type == Type::kText && only(text).bytes == bytes);
    CHECK(only(blob).type == Type::kBytes && only(blob).bytes == bytes);
    CHECK(only(extension).type == Type::kExtension && only(extension).bytes == bytes && only(extension).code == -5);
    CHECK(only(list).type == Type::kList && only(list).count == length);
    CHECK(only(map).type == Type::kMap && only(map).count == length);
  }
}

TEST("msgpack: a value within a value, and what follows it") {
  Writer out;
  out.list(2);
  out.list(2);
  out.natural(1);
  out.text("x");
  out.real(0.5);
  Reader reader = Reader::of_value(out.written());
  CHECK_EQUAL(reader.next().count, 2u);
  Reader first = reader.value();
  CHECK_EQUAL(first.next().count, 2u);
  CHECK_EQUAL(first.next().integer, 1u);
  CHECK(first.next().bytes == "x" && first.is_at_end());
  CHECK_EQUAL(reader.next().real, 0.5);
  CHECK(reader.is_at_end());
  CHECK_THROWS(ProtocolError, reader.next());
}

TEST("msgpack: bytes that are cut off, go on, or are nested too deeply") {
  const std::string whole = one_of_everything();
  CHECK(is_msgpack(whole));
  for (size_t length = 0; length < whole.size(); ++length) CHECK(!is_msgpack(whole.substr(0, length)));
  CHECK(!is_msgpack(whole + '\xc0'));
  CHECK(!is_msgpack("\xc1"));
  CHECK(is_msgpack(std::string(Reader::kMaxDepth, '\x91') + '\xc0'));
  CHECK(!is_msgpack(std::string(Reader::kMaxDepth + 1, '\x91') + '\xc0'));
  CHECK(!is_msgpack("\xdf\xff\xff\xff\xff"));  // four billion pairs, of which none is there
}

TEST("msgpack: arbitrary bytes") {
  std::mt19937 random(5);
  const std::string whole = one_of_everything();
  int values = 0;
  for (int round = 0; round < 50000; ++round) {
    std::string bytes = whole;
    for (int flips = 1 + round % 4; flips > 0; --flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    values += is_msgpack(bytes);
    for (char& byte : bytes = bytes.substr(0, 1 + random() % 12)) byte = static_cast<char>(random());
    values += is_msgpack(bytes);
  }
  CHECK(values > 1000);
}

}  // namespace gld::test

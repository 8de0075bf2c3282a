#include "rpc/failure.h"

#include <new>

#include "common/error.h"
#include "rpc/frame.h"
#include "rpc/msgpack.h"

namespace gld::rpc {
namespace {

constexpr size_t kMaxText = 8 << 10;

// Its first bytes, cut before a letter of UTF-8 that would be cut in two.
void shorten(std::string& text) {
  if (text.size() <= kMaxText) return;
  size_t end = kMaxText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
}

std::string pack(const char* module, const char* name, std::string text, bool is_ours) {
  shorten(text);
  msgpack::Writer out;
  out.list(5);
  out.text(module);
  out.text(name);
  out.text(text);
  out.text("");  // there is no traceback of Python's
  if (is_ours) {
    out.list(1);
    out.text(text);
  } else {
    out.nil();
  }
  return out.written();
}

std::string ours(const char* name, const std::exception& error) {
  return pack("graphlearn_dist.errors", name, error.what(), true);
}

}  // namespace

std::string pack_failure(const std::exception_ptr& pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const UnknownId& error) {
    return ours("UnknownIdError", error);
  } catch (const InvalidArgument& error) {
    return ours("InvalidArgumentError", error);
  } catch (const PartitionFormat& error) {
    return ours("PartitionFormatError", error);
  } catch (const StorageFailure& error) {
    return ours("StorageError", error);
  } catch (const CudaError& error) {
    return ours("CudaError", error);
  } catch (const ProtocolError& error) {
    return ours("ProtocolError", error);
  } catch (const std::bad_alloc& error) {
    return pack("builtins", "MemoryError", error.what(), false);
  } catch (const std::exception& error) {
    return pack("builtins", "RuntimeError", error.what(), false);
  } catch (...) {
    return pack("builtins", "RuntimeError", "an exception of another kind", false);
  }
}

std::string pack_error(const char* class_name, const std::string& text) {
  return pack("graphlearn_dist.errors", class_name, text, true);
}

std::string pack_overloaded(const std::string& own_name, double retry_after_s) {
  msgpack::Writer out;
  out.list(5);
  out.text("graphlearn_dist.errors");
  out.text("OverloadedError");
  out.text(message(own_name, " is overloaded; try again in ", retry_after_s, " s"));
  out.text("");
  out.list(2);
  out.text(own_name);
  out.real(retry_after_s);
  return out.written();
}

}  // namespace gld::rpc

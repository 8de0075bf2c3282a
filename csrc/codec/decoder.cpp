#include <string>
#include <utility>

#include "codec/codec.h"
#include "common/error.h"
#include "rpc/frame.h"

namespace py = pybind11;

namespace gld {
namespace {

using rpc::ProtocolError;
using rpc::msgpack::Item;
using rpc::msgpack::Reader;
using rpc::msgpack::Type;

constexpr size_t kMaxDims = 64;
constexpr uint64_t kMaxExtent = uint64_t{1} << 62;
constexpr unsigned __int128 kMaxTensorBytes = static_cast<unsigned __int128>(1) << 63;

py::object checked(PyObject* made) {
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

py::object as_text(const Item& item) {
  PyObject* const text = PyUnicode_DecodeUTF8(item.bytes.data(), static_cast<Py_ssize_t>(item.bytes.size()), "strict");
  if (text != nullptr) return py::reinterpret_steal<py::object>(text);
  if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) throw py::error_already_set();
  PyErr_Clear();
  throw ProtocolError("malformed msgpack: a text that is not UTF-8");
}

bool is_natural(const Item& item) { return item.type == Type::kInteger && !item.is_negative; }

// What Python raised while it dealt with a peer's values; not a Ctrl-C that came meanwhile.
[[noreturn]] void refuse_for(py::error_already_set& error) {
  if (!error.matches(PyExc_Exception)) throw error;
  throw ProtocolError(message("tree: ", std::string(py::str(error.value())).substr(0, 400)));
}

}  // namespace

py::object as_leaf(const Item& item) {
  switch (item.type) {
    case Type::kNil:
      return py::none();
    case Type::kBoolean:
      return py::bool_(item.integer != 0);
    case Type::kInteger:
      return checked(item.is_negative ? PyLong_FromLongLong(static_cast<int64_t>(item.integer))
                                      : PyLong_FromUnsignedLongLong(item.integer));
    case Type::kReal:
      return checked(PyFloat_FromDouble(item.real));
    case Type::kText:
      return as_text(item);
    case Type::kBytes:
      return checked(PyBytes_FromStringAndSize(item.bytes.data(), static_cast<Py_ssize_t>(item.bytes.size())));
    default:
      return {};
  }
}

Decoder::Decoder(const Vocabulary& vocabulary, size_t max_tree_bytes, py::object payload)
    : vocabulary_(vocabulary), max_tree_bytes_(max_tree_bytes), payload_(std::move(payload)) {
  if (payload_.is_none() || PyObject_GetBuffer(payload_.ptr(), &view_, PyBUF_WRITABLE) == 0) return;
  if (!PyErr_ExceptionMatches(PyExc_BufferError)) throw py::error_already_set();
  PyErr_Clear();
  payload_ = checked(PyByteArray_FromObject(payload_.ptr()));  // torch has no read-only tensors
  if (PyObject_GetBuffer(payload_.ptr(), &view_, PyBUF_WRITABLE) != 0) throw py::error_already_set();
}

Decoder::~Decoder() { PyBuffer_Release(&view_); }

py::object Decoder::decode(std::string_view head) {
  if (head.size() > kMaxValueHeadBytes)
    throw ProtocolError(message("head: expected at most ", kMaxValueHeadBytes, " bytes, got ", head.size()));
  Reader reader = Reader::of_value(head);
  const Item parts = reader.next();
  if (parts.type != Type::kList || parts.count < 1 || parts.count > 2)
    throw ProtocolError("head: expected a tree and segment descriptors");
  if (parts.count == 2) {
    Reader tree = reader.value();
    read_descriptors(reader);
    return walk(tree, 0);
  }
  read_descriptors(reader);
  if (segments_.empty()) throw ProtocolError("head: the tree is missing");
  const Segment& last = segments_.back();
  if (last.nbytes > max_tree_bytes_)
    throw ProtocolError(message("tree: expected at most ", max_tree_bytes_, " bytes, got ", last.nbytes));
  Reader tree = Reader::of_value({static_cast<const char*>(view_.buf) + last.offset, last.nbytes});
  return walk(tree, 0);
}

// --- segments --------------------------------------------------------------------------------------------------------

void Decoder::read_descriptors(Reader descriptors) {
  const Item list = descriptors.next();
  if (list.type != Type::kList) throw ProtocolError("head: expected a list of segment descriptors");
  const size_t payload_bytes = payload_.is_none() ? 0 : static_cast<size_t>(view_.len);
  size_t offset = 0;
  for (size_t i = 0; i < list.count && offset <= payload_bytes; ++i) {
    Segment segment = read_descriptor(descriptors);
    segment.offset = offset;
    offset += padded(segment.nbytes);
    segments_.push_back(std::move(segment));
  }
  if (offset != payload_bytes)
    throw ProtocolError(message("payload: the segments need ", offset, " bytes, got ", payload_bytes));
}

Decoder::Segment Decoder::read_descriptor(Reader& descriptors) {
  const Item parts = descriptors.next();
  if (parts.type != Type::kList || parts.count != 3) throw ProtocolError("segment: expected [dtype, shape, nbytes]");
  Segment segment{dtype_of(descriptors.next()), {}, 0, 0};
  const Vocabulary::Dtype& dtype = vocabulary_.dtypes[segment.dtype];
  const Item shape = descriptors.next();
  if (shape.type != Type::kList || shape.count > kMaxDims)
    throw ProtocolError(message("segment: expected a shape, got ", describe(shape)));
  unsigned __int128 nbytes = dtype.item_bytes, strides = dtype.item_bytes;
  for (size_t i = 0; i < shape.count; ++i) {
    const Item extent = descriptors.next();
    if (!is_natural(extent) || extent.integer >= kMaxExtent)
      throw ProtocolError(message("segment: expected a shape, got one with ", describe(extent)));
    segment.shape.push_back(extent.integer);
    nbytes *= extent.integer;
    strides *= extent.integer == 0 ? 1 : extent.integer;  // at most 2^(63 + 62)
    if (strides >= kMaxTensorBytes)
      throw ProtocolError(
          message("segment: ", std::string(py::str(dtype.torch)), " cannot have the shape that it says"));
  }
  const Item size = descriptors.next();
  segment.nbytes = static_cast<size_t>(nbytes);
  if (!is_natural(size) || size.integer != segment.nbytes)
    throw ProtocolError(message("segment: ", std::string(py::str(dtype.torch)), " of its shape takes ", segment.nbytes,
                                " bytes, not ", describe(size)));
  return segment;
}

size_t Decoder::dtype_of(const Item& code) const {
  if (!is_natural(code) || code.integer >= vocabulary_.dtypes.size())
    throw ProtocolError(message("segment: unknown dtype code ", describe(code)));
  return static_cast<size_t>(code.integer);
}

Decoder::Segment& Decoder::segment(const Item& index) {
  if (!is_natural(index) || index.integer >= segments_.size())
    throw ProtocolError(
        message("tree: expected the index of one of ", segments_.size(), " segments, got ", describe(index)));
  return segments_[index.integer];
}

py::object Decoder::tensor(const Segment& segment) const {
  const Vocabulary::Dtype& dtype = vocabulary_.dtypes[segment.dtype];
  if (segment.nbytes > 0 && segment.shape.size() == 1) return flat_tensor(segment);
  py::tuple shape(segment.shape.size());
  for (size_t i = 0; i < segment.shape.size(); ++i) shape[i] = segment.shape[i];
  if (segment.nbytes > 0) return attribute(flat_tensor(segment), "reshape")(shape);
  return vocabulary_.empty(shape, py::arg("dtype") = dtype.torch);
}

py::object Decoder::flat_tensor(const Segment& segment) const {
  static PyObject* const kAll = py::make_tuple("dtype").release().ptr();
  static PyObject* const kPart = py::make_tuple("dtype", "count", "offset").release().ptr();
  const Vocabulary::Dtype& dtype = vocabulary_.dtypes[segment.dtype];
  const py::int_ count(segment.nbytes / dtype.item_bytes), offset(segment.offset);
  PyObject* const arguments[] = {payload_.ptr(), dtype.torch.ptr(), count.ptr(), offset.ptr()};
  const bool is_all = segment.nbytes == static_cast<size_t>(view_.len);  // takes torch half the time
  return checked(PyObject_Vectorcall(vocabulary_.frombuffer.ptr(), arguments, 1, is_all ? kAll : kPart));
}

py::object Decoder::blob(Segment& segment, uint64_t number) const {
  // A few bytes of head must not become gigabytes.
  if (std::exchange(segment.is_taken, true)) throw ProtocolError(message("tree: segment ", number, " is taken twice"));
  return checked(PyBytes_FromStringAndSize(static_cast<const char*>(view_.buf) + segment.offset,
                                           static_cast<Py_ssize_t>(segment.nbytes)));
}

// --- the tree --------------------------------------------------------------------------------------------------------

py::object Decoder::walk(Reader& tree, int depth) {
  const Item item = tree.next();
  if (py::object leaf = as_leaf(item)) return leaf;
  if (depth >= kMaxNesting) throw ProtocolError(message("tree: nested more than ", kMaxNesting, " deep"));
  if (item.type == Type::kList) return items(tree, item.count, depth);
  if (item.type == Type::kMap) return mapping(tree, item.count, depth);
  return extension(item, depth);
}

py::object Decoder::items(Reader& tree, size_t count, int depth) {
  py::list list(count);
  for (size_t i = 0; i < count; ++i)
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), walk(tree, depth + 1).release().ptr());
  return std::move(list);
}

py::object Decoder::mapping(Reader& tree, size_t count, int depth) {
  py::dict dict;
  for (size_t i = 0; i < count; ++i) {
    const Item key = tree.next();
    if (key.type == Type::kList || key.type == Type::kMap)
      throw ProtocolError("malformed msgpack: a map with a list or a map as a key");
    if (key.type != Type::kText && key.type != Type::kInteger)
      throw ProtocolError("tree: expected str or int as keys of a map");
    const py::object name = as_leaf(key);
    const py::object value = walk(tree, depth + 1);
    if (PyDict_SetItem(dict.ptr(), name.ptr(), value.ptr()) != 0) throw py::error_already_set();
  }
  return std::move(dict);
}

py::object Decoder::extension(const Item& item, int depth) {
  Reader content = Reader::of_value(item.bytes);
  const Item first = content.next();
  switch (item.code) {
    case kTensor:
      return tensor(segment(first));
    case kBytes:
      return blob(segment(first), first.integer);
    case kDtype:
      return vocabulary_.dtypes[dtype_of(first)].torch;
    default:
      if (first.type != Type::kList)
        throw ProtocolError(message("tree: expected a list in extension ", int{item.code}, ", got ", describe(first)));
      return list_extension(item.code, content, first.count, depth);
  }
}

py::object Decoder::list_extension(int code, Reader& content, size_t count, int depth) {
  switch (code) {
    case kTuple:
      return py::tuple(items(content, count, depth));
    case kMessage:
      return message_of(content, count, depth);
    case kPairs:
      return pairs(content, count, depth);
    default:
      throw ProtocolError(message("tree: unknown extension ", code));
  }
}

py::object Decoder::message_of(Reader& content, size_t count, int depth) {
  const Item name = count == 2 ? content.next() : Item{};
  const Item fields = name.type == Type::kText ? content.next() : Item{};
  if (fields.type != Type::kList) throw ProtocolError("tree: expected the name and the fields of a message");
  const py::object key = as_text(name);
  PyObject* const description = PyDict_GetItemWithError(vocabulary_.by_name.ptr(), key.ptr());
  if (description == nullptr)
    throw ProtocolError(message("tree: unknown message type ", std::string(py::repr(key)).substr(0, 100),
                                "; it is not registered here"));
  return attribute(py::reinterpret_borrow<py::object>(description),
                   "put_together")(items(content, fields.count, depth));
}

py::object Decoder::pairs(Reader& content, size_t count, int depth) {
  py::dict dict;
  for (size_t i = 0; i < count; ++i) {
    const Item pair = content.next();
    if (pair.type != Type::kList || pair.count != 2) throw ProtocolError("tree: expected pairs of key and value");
    const py::object key = walk(content, depth + 1);
    const py::object value = walk(content, depth + 1);
    if (PyDict_SetItem(dict.ptr(), key.ptr(), value.ptr()) == 0) continue;
    py::error_already_set error;
    refuse_for(error);
  }
  return std::move(dict);
}

py::object read_plain(Reader& reader, int depth) {
  const Item item = reader.next();
  if (py::object leaf = as_leaf(item)) return leaf;
  if (item.type != Type::kList) throw ProtocolError(message("head: unexpected ", describe(item)));
  if (depth >= kMaxNesting) throw ProtocolError(message("head: nested more than ", kMaxNesting, " deep"));
  py::list list(item.count);
  for (size_t i = 0; i < item.count; ++i)
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), read_plain(reader, depth + 1).release().ptr());
  return std::move(list);
}

}  // namespace gld

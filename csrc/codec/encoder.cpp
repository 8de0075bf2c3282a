#include <string>

#include "codec/codec.h"
#include "common/error.h"

namespace py = pybind11;

namespace gld {
namespace {

using rpc::msgpack::Writer;

constexpr size_t kSpillBytes = 32 << 10;         // a larger tree travels as the last segment
constexpr Py_ssize_t kBytesAsSegment = 4 << 10;  // so do longer `bytes`

std::string_view text_of(PyObject* object) {
  Py_ssize_t size;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (text == nullptr) {
    PyErr_Clear();
    throw InvalidArgument("obj: cannot be encoded: a str that is no Unicode text");
  }
  return {text, static_cast<size_t>(size)};
}

void write_integer(PyObject* object, Writer& out) {
  int overflow;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow == 0) return out.integer(value);
  const unsigned long long natural = overflow > 0 ? PyLong_AsUnsignedLongLong(object) : 0;
  if (overflow < 0 || PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw InvalidArgument("obj: cannot be encoded: an int of more than 64 bits");
  }
  out.natural(natural);
}

py::object checked(PyObject* made) {
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

// What a tensor's memory looks like from Python, where that is one piece as it is; else null.
py::object plain_view(const py::handle& tensor) {
  static PyObject* const kNumpy = PyUnicode_InternFromString("numpy");
  const auto array = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(tensor.ptr(), kNumpy));
  const auto view = py::reinterpret_steal<py::object>(array ? PyMemoryView_FromObject(array.ptr()) : nullptr);
  if (!view) {  // on another device, with a gradient, or not what it seems: the caller copies it
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
    PyErr_Clear();
    return {};
  }
  return PyBuffer_IsContiguous(PyMemoryView_GET_BUFFER(view.ptr()), 'C') ? view : py::object();
}

size_t bytes_in(const py::object& view) { return static_cast<size_t>(PyMemoryView_GET_BUFFER(view.ptr())->len); }

}  // namespace

py::object attribute(const py::handle& object, const char* name) {
  return checked(PyObject_GetAttrString(object.ptr(), name));
}

bool write_leaf(const py::handle& object, Writer& out) {
  PyObject* const pointer = object.ptr();
  const PyTypeObject* const kind = Py_TYPE(pointer);
  if (pointer == Py_None) {
    out.nil();
  } else if (kind == &PyBool_Type) {
    out.boolean(pointer == Py_True);
  } else if (kind == &PyLong_Type) {
    write_integer(pointer, out);
  } else if (kind == &PyFloat_Type) {
    out.real(PyFloat_AS_DOUBLE(pointer));
  } else if (kind == &PyUnicode_Type) {
    out.text(text_of(pointer));
  } else {
    return false;
  }
  return true;
}

py::tuple Encoder::encode(const py::handle& object) {
  Writer tree;
  walk(object, 0, tree);
  const py::bytes whole = head(tree);
  return py::make_tuple(whole, py::tuple(views_), nbytes_);
}

// [tree, descriptors], or [descriptors] when the tree is the last segment.
py::bytes Encoder::head(const Writer& tree) {
  const size_t tree_bytes = tree.written().size();
  if (tree_bytes > max_tree_bytes_)
    throw InvalidArgument(
        message("obj: ", tree_bytes, " bytes beside its tensors; expected at most ", max_tree_bytes_));
  const bool is_spilled = tree_bytes > kSpillBytes;
  if (is_spilled) add_bytes(py::bytes(tree.written()));
  Writer out;
  out.list(is_spilled ? 1 : 2);
  if (!is_spilled) out.append(tree.written());
  out.list(num_segments_);
  out.append(descriptors_.written());
  if (out.written().size() > kMaxValueHeadBytes)
    throw InvalidArgument(message("obj: ", num_segments_, " tensors are too many for one message"));
  return py::bytes(out.written());
}

void Encoder::walk(const py::handle& object, int depth, Writer& out) {
  if (write_leaf(object, out)) return;
  if (depth >= kMaxNesting) throw InvalidArgument(message("obj: nested more than ", kMaxNesting, " deep"));
  PyTypeObject* const kind = Py_TYPE(object.ptr());
  if (kind == &PyList_Type) {
    items(object, depth, out);
  } else if (kind == &PyDict_Type) {
    mapping(object, depth, out);
  } else if (kind == &PyTuple_Type || reinterpret_cast<PyObject*>(kind) == vocabulary_.size_type.ptr()) {
    Writer content;
    items(object, depth, content);
    out.extension(kTuple, content.written());
  } else if (PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(vocabulary_.tensor_type.ptr()))) {
    Writer content;
    content.natural(add_tensor(object));
    out.extension(kTensor, content.written());
  } else {
    other(object, depth, out);
  }
}

// Walking runs code of Python's, which may change what is walked.
void Encoder::items(const py::handle& sequence, int depth, Writer& out) {
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence.ptr());
  out.list(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PySequence_Fast_GET_SIZE(sequence.ptr()) != count) throw InvalidArgument("obj: a list changed meanwhile");
    walk(py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(sequence.ptr(), i)), depth + 1, out);
  }
}

void Encoder::mapping(const py::handle& dict, int depth, Writer& out) {
  const auto items = checked(PyDict_Items(dict.ptr()));  // a list of pairs
  const Py_ssize_t count = PyList_GET_SIZE(items.ptr());
  bool are_plain = true;
  for (Py_ssize_t i = 0; are_plain && i < count; ++i) {
    const PyTypeObject* const kind = Py_TYPE(PyTuple_GET_ITEM(PyList_GET_ITEM(items.ptr(), i), 0));
    are_plain = kind == &PyUnicode_Type || kind == &PyLong_Type;
  }
  Writer content;
  Writer& target = are_plain ? out : content;
  are_plain ? target.map(static_cast<size_t>(count)) : target.list(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const pair = PyList_GET_ITEM(items.ptr(), i);
    if (!are_plain) target.list(2);
    walk(PyTuple_GET_ITEM(pair, 0), depth + 1, target);
    walk(PyTuple_GET_ITEM(pair, 1), depth + 1, target);
  }
  if (!are_plain) out.extension(kPairs, content.written());
}

void Encoder::other(const py::handle& object, int depth, Writer& out) {
  PyObject* const pointer = object.ptr();
  if (PyBytes_Check(pointer) || PyByteArray_Check(pointer) || PyMemoryView_Check(pointer)) return blob(object, out);
  const auto kind = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(pointer)));
  PyObject* const description = PyDict_GetItemWithError(vocabulary_.by_type.ptr(), kind.ptr());
  if (description != nullptr) return message_of(py::reinterpret_borrow<py::object>(description), object, depth, out);
  if (kind.is(py::type::of(vocabulary_.dtypes.front().torch))) {
    Writer content;
    content.natural(code_of(object));
    return out.extension(kDtype, content.written());
  }
  PyErr_Clear();
  throw InvalidArgument(message("obj: a ", std::string(py::str(attribute(kind, "__module__"))), ".",
                                std::string(py::str(attribute(kind, "__qualname__"))),
                                " cannot travel; expected None, bool, int, float, str, bytes, list, tuple, dict, "
                                "torch.Tensor or a type passed to register_message"));
}

void Encoder::message_of(const py::handle& description, const py::handle& object, int depth, Writer& out) {
  const py::object values = attribute(description, "take_apart")(object);
  Writer content;
  content.list(2);
  content.text(text_of(attribute(description, "name").ptr()));
  items(values, depth, content);
  out.extension(kMessage, content.written());
}

void Encoder::blob(const py::handle& object, Writer& out) {
  const auto bytes = checked(PyBytes_FromObject(object.ptr()));  // itself where it is exactly that
  const Py_ssize_t size = PyBytes_GET_SIZE(bytes.ptr());
  if (size < kBytesAsSegment) return out.bytes({PyBytes_AS_STRING(bytes.ptr()), static_cast<size_t>(size)});
  Writer content;
  content.natural(add_bytes(bytes));
  out.extension(kBytes, content.written());
}

size_t Encoder::code_of(const py::handle& dtype) const {
  for (size_t code = 0; code < vocabulary_.dtypes.size(); ++code)
    if (dtype.is(vocabulary_.dtypes[code].torch)) return code;
  throw InvalidArgument(message("obj: tensors of ", std::string(py::str(dtype)), " cannot travel"));
}

size_t Encoder::add_tensor(const py::handle& tensor) {
  const size_t code = code_of(attribute(tensor, "dtype"));
  py::object view = vocabulary_.dtypes[code].has_buffer ? plain_view(tensor) : py::object();
  if (!view) view = vocabulary_.tensor_bytes(tensor);
  const auto shape = attribute(tensor, "shape");
  descriptors_.list(3);
  descriptors_.natural(code);
  const Py_ssize_t dims = PyTuple_GET_SIZE(shape.ptr());
  descriptors_.list(static_cast<size_t>(dims));
  for (Py_ssize_t i = 0; i < dims; ++i) write_integer(PyTuple_GET_ITEM(shape.ptr(), i), descriptors_);
  return append(view, bytes_in(view));
}

size_t Encoder::add_bytes(const py::object& bytes) {
  const auto view = checked(PyMemoryView_FromObject(bytes.ptr()));
  constexpr uint64_t kUint8 = 1;
  descriptors_.list(3);
  descriptors_.natural(kUint8);
  descriptors_.list(1);
  descriptors_.natural(bytes_in(view));
  return append(view, bytes_in(view));
}

// The rest of a descriptor, and its segment; the number of it.
size_t Encoder::append(const py::object& view, size_t nbytes) {
  descriptors_.natural(nbytes);
  if (nbytes > 0) {
    views_.append(attribute(view, "cast")("B"));
    nbytes_ += padded(nbytes);
  }
  return num_segments_++;
}

void write_plain(const py::handle& object, Writer& out, int depth) {
  PyObject* const pointer = object.ptr();
  if (write_leaf(object, out)) return;
  if (depth >= kMaxNesting) throw InvalidArgument(message("meta: nested more than ", kMaxNesting, " deep"));
  if (PyList_Check(pointer) || PyTuple_Check(pointer)) {
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(pointer);
    out.list(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) write_plain(PySequence_Fast_GET_ITEM(pointer, i), out, depth + 1);
  } else if (PyDict_Check(pointer)) {
    out.map(static_cast<size_t>(PyDict_GET_SIZE(pointer)));
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(object)) {
      write_plain(key, out, depth + 1);
      write_plain(value, out, depth + 1);
    }
  } else if (PyBytes_Check(pointer)) {
    out.bytes({PyBytes_AS_STRING(pointer), static_cast<size_t>(PyBytes_GET_SIZE(pointer))});
  } else if (PyLong_Check(pointer)) {  // of a subclass, as what follows
    write_integer(pointer, out);
  } else if (PyFloat_Check(pointer)) {
    out.real(PyFloat_AS_DOUBLE(pointer));
  } else if (PyUnicode_Check(pointer)) {
    out.text(text_of(pointer));
  } else {
    throw InvalidArgument(
        message("meta: a ", std::string(py::str(attribute(py::type::of(object), "__qualname__"))), " cannot travel"));
  }
}

}  // namespace gld

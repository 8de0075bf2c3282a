#include "codec/codec.h"

#include <cstring>
#include <utility>

#include "bindings/module.h"
#include "common/error.h"
#include "rpc/frame.h"

namespace py = pybind11;

namespace gld {
namespace {

using rpc::msgpack::Reader;
using rpc::msgpack::Writer;

// A buffer's bytes, for a scope.
class Bytes {
 public:
  explicit Bytes(const py::handle& buffer) {
    if (PyObject_GetBuffer(buffer.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  std::string_view get() const { return {static_cast<const char*>(view_.buf), static_cast<size_t>(view_.len)}; }

 private:
  Py_buffer view_;
};

// `dtypes`: by code, (torch.dtype, bytes of an item, whether Python's buffers know it).
std::unique_ptr<Vocabulary> make_vocabulary(const py::list& dtypes, py::object tensor_type, py::object size_type,
                                            py::dict by_type, py::dict by_name, py::object tensor_bytes,
                                            py::object frombuffer, py::object empty) {
  if (dtypes.empty()) throw InvalidArgument("dtypes: expected some");
  auto vocabulary = std::make_unique<Vocabulary>(
      Vocabulary{{}, tensor_type, size_type, by_type, by_name, tensor_bytes, frombuffer, empty});
  for (const py::handle entry : dtypes) {
    const auto fields = py::reinterpret_borrow<py::tuple>(entry);
    vocabulary->dtypes.push_back({fields[0], fields[1].cast<size_t>(), fields[2].cast<bool>()});
  }
  return vocabulary;
}

py::tuple encode(const Vocabulary& self, const py::object& object, size_t max_tree_bytes) {
  return Encoder(self, max_tree_bytes).encode(object);
}

py::object decode(const Vocabulary& self, const py::object& head, py::object payload, size_t max_tree_bytes) {
  const Bytes bytes(head);
  return Decoder(self, max_tree_bytes, std::move(payload)).decode(bytes.get());
}

py::bytes pack(const py::object& value) {
  Writer out;
  write_plain(value, out);
  return py::bytes(out.written());
}

// A frame's head: a length, what the frame says about itself, and the head of its value.
py::bytes pack_head(const py::object& meta, const py::bytes& value_head) {
  Writer out;
  write_plain(meta, out);
  const auto value = static_cast<std::string_view>(value_head);
  const size_t length = out.written().size();
  if (sizeof(uint16_t) + length + value.size() > rpc::kMaxHeadBytes)
    throw InvalidArgument(message("meta: ", length, " bytes do not fit into a frame's head"));
  const auto prefix = static_cast<uint16_t>(length);
  std::string head(reinterpret_cast<const char*>(&prefix), sizeof prefix);
  return py::bytes(head.append(out.written()).append(value));
}

py::tuple split_head(const py::object& head) {
  const Bytes bytes(head);
  const auto [about, value] = rpc::split_head(bytes.get());
  Reader reader = Reader::of_value(about);
  const py::object meta = read_plain(reader);
  if (!py::isinstance<py::list>(meta)) throw rpc::ProtocolError("head: expected a list");
  return py::make_tuple(meta, py::bytes(value.data(), value.size()));
}

py::bytes pack_frame(uint8_t kind, uint64_t request_id, const py::bytes& head, uint16_t flags, uint32_t deadline_ms,
                     uint64_t payload_len) {
  const auto bytes = static_cast<std::string_view>(head);
  rpc::Header header;
  header.kind = kind;
  header.flags = flags;
  header.request_id = request_id;
  header.head_bytes = static_cast<uint32_t>(bytes.size());
  header.deadline_ms = deadline_ms;
  header.payload_bytes = payload_len;
  std::string frame = rpc::pack_header(header);
  frame.append(bytes);
  frame.append(header.padded_head_bytes() - bytes.size(), '\0');
  return py::bytes(frame);
}

py::object unpack(const py::object& data) {
  const Bytes bytes(data);
  Reader reader = Reader::of_value(bytes.get());
  return read_plain(reader);
}

}  // namespace

void bind_codec(py::module_& m) {
  py::class_<Vocabulary> codec(m, "Codec", "Python values as msgpack trees and segments of bytes, and back.");
  codec.attr("MAX_NESTING") = kMaxNesting;
  codec.attr("MAX_HEAD_BYTES") = kMaxValueHeadBytes;
  codec
      .def(py::init(&make_vocabulary), py::kw_only(), py::arg("dtypes"), py::arg("tensor_type"), py::arg("size_type"),
           py::arg("by_type"), py::arg("by_name"), py::arg("tensor_bytes"), py::arg("frombuffer"), py::arg("empty"))
      .def("encode", &encode, py::arg("obj"), py::arg("max_tree_bytes"),
           "Head, segments (memoryviews of bytes) and bytes of the payload.")
      .def("decode", &decode, py::arg("head"), py::arg("payload"), py::arg("max_tree_bytes"),
           "The value whose head this is; tensors are views into the payload.");
  m.def("pack", &pack, py::arg("value"),
        "None, bool, int, float, str, bytes, and lists, tuples and dicts of them, in msgpack.");
  m.def("pack_head", &pack_head, py::arg("meta"), py::arg("value_head") = py::bytes(),
        "A frame's head out of what it says about itself and the head of its value.");
  m.def("split_head", &split_head, py::arg("head"), "The two parts of `pack_head`.");
  m.def("pack_frame", &pack_frame, py::arg("kind"), py::arg("request_id") = 0, py::arg("head") = py::bytes(),
        py::arg("flags") = 0, py::arg("deadline_ms") = 0, py::arg("payload_len") = 0,
        "Header, head and padding; the payload's bytes, if any, are to follow.");
  m.def("unpack", &unpack, py::arg("data"), "What `pack` packed, without dicts.");
}

}  // namespace gld

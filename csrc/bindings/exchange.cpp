#include <pybind11/stl.h>

#include <cstring>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "bindings/buffers.h"
#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "exchange/partition_server.h"
#include "exchange/queries.h"
#include "sampling/methods.h"

namespace py = pybind11;

namespace gld {
namespace {

using namespace exchange;
using rpc::OutgoingValue;

// In the order of exchange::Query.
constexpr const char* kKindNames[] = {"hop", "rows", "owned", "has_edges", "induced", "degrees"};
static_assert(std::size(kKindNames) == std::variant_size_v<Query>);

// --- bytes -----------------------------------------------------------------------------------------------------------

// The bytes of a buffer or of a tensor of uint8, kept for as long as somebody looks at them.
Tensor bytes_of(const py::object& object, const char* name) {
  if (!PyObject_CheckBuffer(object.ptr())) {
    Tensor bytes = from_python(object, name);
    check_vector(bytes, kUInt8, bytes.numel(), name);
    return bytes;
  }
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_SIMPLE) != 0) throw py::error_already_set();
  Tensor bytes;
  bytes.data = view->buf;
  bytes.dtype = kUInt8;
  bytes.shape = {static_cast<int64_t>(view->len)};
  bytes.owner = std::shared_ptr<void>(view.release(), [](void* held) {
    if (!Py_IsInitialized()) return;  // the memory goes with the process
    GilHeld gil;
    PyBuffer_Release(static_cast<Py_buffer*>(held));
    delete static_cast<Py_buffer*>(held);
  });
  return bytes;
}

// A value as it came, and what keeps its bytes.
struct Incoming {
  Incoming(const py::object& head, const py::object& payload)
      : head(bytes_of(head, "head")), payload(payload.is_none() ? Tensor() : bytes_of(payload, "payload")) {}

  rpc::IncomingValue value() const {
    const auto payload_bytes = payload.defined() ? static_cast<uint64_t>(payload.numel()) : 0;
    return {{head.as<char>(), static_cast<size_t>(head.numel())}, payload.data, payload_bytes, payload.owner};
  }

  Tensor head, payload;
};

py::list segments_of(const OutgoingValue& value) {
  py::list segments;
  for (const rpc::Segment& segment : value.segments) {
    std::shared_ptr<void> memory(std::const_pointer_cast<void>(segment.owner), const_cast<void*>(segment.data));
    segments.append(Buffer{std::move(memory), segment.bytes});
  }
  return segments;
}

py::tuple as_tuple(const OutgoingValue& value) {
  return py::make_tuple(py::bytes(value.head), segments_of(value), value.payload_bytes());
}

// --- what Python does for the core -----------------------------------------------------------------------------------

// As the exception of the core that module.cpp would make this one of. The GIL is held.
[[noreturn]] void throw_as_core(const py::error_already_set& error) {
  const auto is = [&](const char* name) {
    return error.matches(py::module_::import("graphlearn_dist.errors").attr(name));
  };
  const std::string text = py::str(error.value());
  if (is("UnknownIdError")) throw UnknownId(text);
  if (is("InvalidArgumentError")) throw InvalidArgument(text);
  if (is("PartitionFormatError")) throw PartitionFormat(text);
  if (is("CudaError")) throw CudaError(text);
  if (error.matches(PyExc_MemoryError)) throw OutOfMemory(text);
  throw std::runtime_error(message(std::string(py::str(error.type().attr("__name__"))), ": ", text));
}

// A function of Python, called and given up by threads that do not have the GIL.
class PythonFunction {
 public:
  explicit PythonFunction(py::object function)
      : function_(new py::object(std::move(function)), [](py::object* held) {
          if (!Py_IsInitialized()) return;  // it goes with the process
          GilHeld gil;
          delete held;
        }) {}

  // What `read` makes of what it gives.
  template <typename Read, typename... Arguments>
  auto call(Read&& read, Arguments&&... arguments) const {
    GilHeld gil;
    try {
      return read((*function_)(std::forward<Arguments>(arguments)...));
    } catch (const py::error_already_set& error) {
      throw_as_core(error);
    }
  }

 private:
  std::shared_ptr<py::object> function_;
};

// What a function gives when it is first called, or nothing where there is none.
template <typename T>
std::shared_ptr<Lazy<T>> lazy(const py::object& function) {
  if (function.is_none()) return nullptr;
  return std::make_shared<Lazy<T>>([made = PythonFunction(function)] {
    return made.call(
        [](const py::object& object) { return std::shared_ptr<const T>(object.cast<std::shared_ptr<T>>()); });
  });
}

// A RowStore, or (a function that gathers rows, bytes of a row), or nothing.
HeldRows held_rows(const py::object& object) {
  HeldRows rows;
  if (py::isinstance<RowStore>(object)) {
    rows.store = object.cast<std::shared_ptr<RowStore>>();
  } else if (!object.is_none()) {
    auto [function, row_bytes] = object.cast<std::pair<py::object, size_t>>();
    rows.gathered_row_bytes = row_bytes;
    rows.gather = [gather = PythonFunction(function)](const Tensor& wanted) {
      return gather.call([](const py::object& gathered) { return from_python(gathered, "rows"); }, wanted);
    };
  }
  return rows;
}

using EdgesArgument = std::tuple<std::shared_ptr<Csr>, std::shared_ptr<PartitionBook>, py::object>;
using StoreArgument = std::tuple<std::string, std::shared_ptr<PartitionBook>, py::object, py::object, py::object>;

HeldStore held_store(const StoreArgument& argument) {
  const auto& [name, book, edge_ids, own, copies] = argument;
  HeldStore store{name, book, lazy<SortedIds>(edge_ids), held_rows(own), std::nullopt};
  if (!copies.is_none()) {
    const auto [rows, ids, places] = copies.cast<std::tuple<py::object, py::object, py::object>>();
    store.copies = HeldCopies{held_rows(rows), from_python(ids, "copies"), from_python(places, "copies")};
  }
  return store;
}

std::shared_ptr<PartitionServer> make_server(int partition, const std::vector<EdgesArgument>& edges,
                                             const std::vector<StoreArgument>& stores, std::shared_ptr<ThreadPool> pool,
                                             int64_t max_answer_bytes) {
  HeldPartition held;
  held.number = partition;
  for (const auto& [graph, book, weighted] : edges) held.edges.push_back({graph, book, lazy<Csr>(weighted)});
  for (const StoreArgument& store : stores) held.stores.push_back(held_store(store));
  held.pool = std::move(pool);
  held.max_answer_bytes = max_answer_bytes;
  return std::make_shared<PartitionServer>(std::move(held));
}

// --- queries ---------------------------------------------------------------------------------------------------------

// Ids in the fewest bytes, in the core's own memory: what Python borrowed cannot be given up where it was sent, without
// the GIL.
Tensor to_send(const Tensor& ids) {
  Tensor narrow = fewest_bytes(ids);
  if (narrow.data != ids.data || ids.numel() == 0) return narrow;
  Tensor copy = empty(ids.shape, ids.dtype);
  std::memcpy(copy.data, ids.data, ids.nbytes());
  return copy;
}

using HopArgument = std::tuple<int, py::object, int64_t, DrawMethod, uint64_t, py::object, py::object>;

OutgoingValue hop_query(const std::vector<HopArgument>& parts, bool with_edge_ids) {
  HopQuery query;
  query.with_edge_ids = with_edge_ids;
  for (const auto& [edge_type, ids, fanout, how, key, trees, times] : parts)
    query.parts.push_back({edge_type,
                           {fanout, how, key, with_edge_ids},
                           from_python(ids, "ids"),
                           from_python_optional(trees, "trees"),
                           from_python_optional(times, "times")});
  return without_gil([&] {
    for (HopQuery::Part& part : query.parts) {
      part.ids = to_send(part.ids);
      if (part.trees.defined()) part.trees = to_send(part.trees);
    }
    return encode_query(std::move(query));
  });
}

template <typename OfStores>
OutgoingValue stores_query(const std::vector<std::string>& stores, const std::vector<py::object>& ids) {
  if (stores.size() != ids.size())
    throw InvalidArgument(message("ids: expected some for each of ", stores.size(), " stores, got ", ids.size()));
  OfStores query;
  for (size_t i = 0; i < stores.size(); ++i) query.parts.push_back({stores[i], from_python(ids[i], "ids")});
  return without_gil([&] {
    for (auto& part : query.parts) part.ids = to_send(part.ids);
    return encode_query(std::move(query));
  });
}

OutgoingValue has_edges_query(int edge_type, const py::object& ids, const py::object& neighbors) {
  HasEdgesQuery query{edge_type, from_python(ids, "ids"), from_python(neighbors, "neighbors")};
  return without_gil([&] {
    query.ids = to_send(query.ids);
    query.neighbors = to_send(query.neighbors);
    return encode_query(std::move(query));
  });
}

OutgoingValue degrees_query(int edge_type, const py::object& ids) {
  DegreesQuery query{edge_type, from_python(ids, "ids")};
  return without_gil([&] {
    query.ids = to_send(query.ids);
    return encode_query(std::move(query));
  });
}

OutgoingValue induced_query(const std::vector<std::tuple<int, int, py::object>>& parts,
                            const std::vector<py::object>& members, bool with_edge_ids) {
  InducedQuery query;
  query.with_edge_ids = with_edge_ids;
  for (const auto& [edge_type, member_type, ids] : parts)
    query.parts.push_back({edge_type, member_type, from_python(ids, "ids")});
  for (const py::object& of_type : members) query.members.push_back(from_python(of_type, "members"));
  return without_gil([&] {
    for (InducedQuery::Part& part : query.parts) part.ids = to_send(part.ids);
    for (Tensor& of_type : query.members) of_type = to_send(of_type);
    return encode_query(std::move(query));
  });
}

// The arguments that the function above of that kind takes.
py::tuple arguments_of(const HopQuery& query) {
  std::vector<std::tuple<int, Tensor, int64_t, DrawMethod, uint64_t, Tensor, Tensor>> parts;
  for (const HopQuery::Part& part : query.parts)
    parts.emplace_back(part.edge_type, part.ids, part.draw.fanout, part.draw.how, part.draw.key, part.trees,
                       part.times);
  return py::make_tuple(parts, query.with_edge_ids);
}

py::tuple arguments_of(const std::vector<RowsQuery::Part>& parts) {
  std::vector<std::string> stores;
  std::vector<Tensor> ids;
  for (const RowsQuery::Part& part : parts) {
    stores.push_back(part.store);
    ids.push_back(part.ids);
  }
  return py::make_tuple(stores, ids);
}

py::tuple arguments_of(const RowsQuery& query) { return arguments_of(query.parts); }
py::tuple arguments_of(const OwnedQuery& query) { return arguments_of(query.parts); }
py::tuple arguments_of(const HasEdgesQuery& query) {
  return py::make_tuple(query.edge_type, query.ids, query.neighbors);
}

py::tuple arguments_of(const InducedQuery& query) {
  std::vector<std::tuple<int, int, Tensor>> parts;
  for (const InducedQuery::Part& part : query.parts) parts.emplace_back(part.edge_type, part.member_type, part.ids);
  return py::make_tuple(parts, query.members, query.with_edge_ids);
}

py::tuple arguments_of(const DegreesQuery& query) { return py::make_tuple(query.edge_type, query.ids); }

}  // namespace

void bind_exchange(py::module_& m) {
  py::class_<PartitionServer, rpc::Answerer, std::shared_ptr<PartitionServer>>(
      m, "PartitionServer", "Answers queries for one partition; see csrc/exchange/partition_server.h.")
      .def(py::init(&make_server), py::arg("partition"), py::arg("edges"), py::arg("stores"), py::arg("pool"),
           py::arg("max_answer_bytes"))
      .def_property_readonly(
          "answered",
          [](const PartitionServer& self) {
            const std::vector<PartitionServer::Answers> answered = self.answered();
            py::dict by_kind;
            for (size_t kind = 0; kind < answered.size(); ++kind)
              by_kind[kKindNames[kind]] = py::make_tuple(answered[kind].count, answered[kind].ns, answered[kind].bytes);
            return by_kind;
          },
          "By kind, how many queries it has answered, the nanoseconds that took, and the bytes of the answers.")
      .def(
          "answer",
          [](PartitionServer& self, const py::object& head, const py::object& payload) {
            const Incoming query(head, payload);
            // Reads immutable arrays and writes fresh memory: any number of threads may be in here.
            return as_tuple(without_gil([&] { return rpc::made(self.answer(query.value())); }));
          },
          py::arg("head"), py::arg("payload") = py::none(),
          "Head, segments (buffers, sent one behind the other at multiples of 64) and bytes of the payload.");

  py::class_<OutgoingValue, std::shared_ptr<OutgoingValue>>(m, "EncodedQuery",
                                                            "A query, ready to be sent from where its tensors lie.")
      .def_property_readonly("head", [](const OutgoingValue& self) { return py::bytes(self.head); })
      .def_property_readonly("nbytes", &OutgoingValue::payload_bytes, "Bytes of the payload, with padding.")
      .def("payload", &segments_of, "Segments: buffers, sent one behind the other at multiples of 64.");

  m.def("hop_query", &hop_query, py::arg("parts"), py::arg("with_edge_ids"),
        "One hop; each part is (edge type, ids, fan-out, DrawMethod, key, trees or None, times or None).");
  m.def("rows_query", &stores_query<RowsQuery>, py::arg("stores"), py::arg("ids"), "Rows of each store.");
  m.def("owned_query", &stores_query<OwnedQuery>, py::arg("stores"), py::arg("ids"), "Which ids of each store it has.");
  m.def("has_edges_query", &has_edges_query, py::arg("edge_type"), py::arg("ids"), py::arg("neighbors"),
        "Whether nodes have an edge to others.");
  m.def("degrees_query", &degrees_query, py::arg("edge_type"), py::arg("ids"), "How many neighbors nodes have.");
  m.def("induced_query", &induced_query, py::arg("parts"), py::arg("members"), py::arg("with_edge_ids"),
        "Edges to members; each part is (edge type, which of members, ids).");
  m.def(
      "decode_query",
      [](const py::object& head, const py::object& payload) {
        const Incoming query(head, payload);
        const Query decoded = decode_query(query.value());
        const py::tuple arguments = std::visit([](const auto& body) { return arguments_of(body); }, decoded);
        return py::make_tuple(kKindNames[decoded.index()], arguments);
      },
      py::arg("head"), py::arg("payload"),
      "The kind of a query (\"hop\", ...), and what the function of that name (`hop_query`, ...) takes to make it.");
  m.def(
      "decode_answer",
      [](const py::object& head, const py::object& payload, size_t count) {
        const Incoming answer(head, payload);
        return decode_answer(answer.value(), count);
      },
      py::arg("head"), py::arg("payload"), py::arg("count"),
      "The tensors of an answer, some None: views of the payload, which is writable, or None where it has no bytes.");
}

}  // namespace gld

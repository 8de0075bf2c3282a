#include <pybind11/stl.h>

#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "bindings/os_error.h"
#include "ingest/id_table.h"
#include "ingest/row_buckets.h"

namespace py = pybind11;

namespace gld {
namespace {

// int64 [n], or (offsets, bytes).
IdColumn id_column(const py::object& ids, const char* name) {
  IdColumn column;
  if (py::isinstance<py::tuple>(ids)) {
    const auto parts = py::reinterpret_borrow<py::tuple>(ids);
    if (parts.size() != 2) throw InvalidArgument(message(name, ": expected int64 [n], or (offsets, bytes)"));
    column.offsets = from_python(py::object(parts[0]), name);
    column.bytes = from_python(py::object(parts[1]), name);
  } else {
    column.ids = from_python(ids, name);
  }
  return column;
}

// A write that fails is the caller's to handle: with the file's name, as Python's own errors have it.
template <typename Call>
void with_path_errors(Call&& call) {
  try {
    without_gil([&] { return call(), 0; });
  } catch (const std::system_error& error) {
    errno = error.code().value();
    const std::string what = error.what();  // "path: reason"
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, what.substr(0, what.rfind(": ")).c_str());
    throw py::error_already_set();
  }
}

}  // namespace

void bind_ingest(py::module_& m) {
  py::class_<RowBuckets, std::shared_ptr<RowBuckets>>(
      m, "RowBuckets", "Distributes records over files by the partition and local row of their nodes.")
      .def(py::init([](std::shared_ptr<PartitionBook> book, std::string folder, int shift,
                       std::vector<int64_t> item_sizes, int64_t buffer_bytes) {
             return std::make_shared<RowBuckets>(std::move(book), std::move(folder), shift, std::move(item_sizes),
                                                 buffer_bytes);
           }),
           py::arg("book"), py::arg("folder"), py::arg("shift"), py::arg("item_sizes"), py::arg("buffer_bytes"))
      .def(
          "put",
          [](RowBuckets& self, const py::object& ids, const py::sequence& columns, ThreadPool* pool) {
            const Tensor wanted = from_python(ids, "ids");
            std::vector<Tensor> items;
            for (const py::handle& column : columns) items.push_back(from_python(column, "columns"));
            with_path_errors([&] { self.put(wanted, items, pool); });
          },
          py::arg("ids"), py::arg("columns"), py::arg("pool") = py::none())
      .def("flush", [](RowBuckets& self) { with_path_errors([&] { self.flush(); }); })
      .def_property_readonly("num_buckets", &RowBuckets::num_buckets)
      .def_property_readonly("record_bytes", &RowBuckets::record_bytes)
      .def("first_bucket", &RowBuckets::first_bucket, py::arg("partition"))
      .def("counts", &RowBuckets::counts);

  py::class_<IdTable, std::shared_ptr<IdTable>>(
      m, "IdTable",
      "Finds ids in a list of distinct ones: int64 [n], or (offsets int64 [n + 1], bytes uint8) of texts.")
      .def(py::init([](const py::object& ids) {
             const IdColumn column = id_column(ids, "ids");
             GilReleased release;
             return std::make_shared<IdTable>(column);
           }),
           py::arg("ids"))
      .def(py::init([](int64_t max_ids, int64_t text_bytes) {
             GilReleased release;
             return std::make_shared<IdTable>(max_ids, text_bytes);
           }),
           py::kw_only(), py::arg("max_ids"), py::arg("text_bytes"),
           "Room for ids that `add` brings; text_bytes: of all texts at most, -1 where the ids are integers.")
      .def(
          "add",
          [](IdTable& self, const py::object& ids) {
            const IdColumn column = id_column(ids, "ids");
            GilReleased release;
            self.add(column);
          },
          py::arg("ids"), "More ids; their positions follow those of the ids before them.")
      .def(
          "find",
          [](const IdTable& self, const py::object& asked, ThreadPool* pool) {
            const IdColumn column = id_column(asked, "asked");
            return without_gil([&] { return self.find(column, pool); });
          },
          py::arg("asked"), py::arg("pool") = py::none(), "Positions in the list, -1 where it has none.");
}

}  // namespace gld

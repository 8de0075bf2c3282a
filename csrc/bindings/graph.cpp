#include "bindings/dlpack.h"
#include "bindings/module.h"
#include "graph/csr.h"

namespace py = pybind11;

namespace gld {
namespace {

py::tuple to_tuple(Csr csr) {
  return py::make_tuple(to_python(std::move(csr.indptr)), to_python(std::move(csr.indices)),
                        to_python_optional(std::move(csr.edge_ids)));
}

}  // namespace

void bind_graph(py::module_& m) {
  py::class_<Csr, std::shared_ptr<Csr>>(m, "Csr",
                                        "Borrowed compressed sparse rows: indptr int64, indices and edge ids "
                                        "int32 or int64; edge_ids None where an id is its position.")
      .def(py::init([](py::object indptr, py::object indices, py::object edge_ids, int64_t num_cols) {
             return std::make_shared<Csr>(make_csr(from_python(indptr, "indptr"), from_python(indices, "indices"),
                                                   from_python_optional(edge_ids, "edge_ids"), num_cols));
           }),
           py::arg("indptr"), py::arg("indices"), py::arg("edge_ids"), py::arg("num_cols"))
      .def_property_readonly("num_rows", &Csr::num_rows)
      .def_readonly("num_cols", &Csr::num_cols)
      .def_property_readonly("num_edges", &Csr::num_edges)
      .def(
          "validate", [](const Csr& self, ThreadPool& pool) { validate_csr(self, pool); }, py::arg("pool"),
          py::call_guard<py::gil_scoped_release>());

  // The inputs are only read and outputs are fresh memory, so other Python threads may run meanwhile.
  m.def(
      "build_csr",
      [](py::object row, py::object col, py::object edge_ids, int64_t num_rows, int64_t num_cols, ThreadPool& pool) {
        const Tensor rows = from_python(row, "row"), cols = from_python(col, "col");
        const Tensor edges = from_python_optional(edge_ids, "edge_ids");
        Csr csr;
        {
          py::gil_scoped_release nogil;
          csr = build_csr(rows, cols, edges, num_rows, num_cols, pool);
        }
        return to_tuple(std::move(csr));
      },
      py::arg("row"), py::arg("col"), py::arg("edge_ids"), py::arg("num_rows"), py::arg("num_cols"), py::arg("pool"),
      "Canonical (indptr, indices, edge_ids) of a COO list.");
  m.def(
      "take_csr_rows",
      [](py::object indptr, py::object indices, py::object edge_ids, py::object rows, int64_t num_cols,
         ThreadPool& pool) {
        const Csr csr = make_csr(from_python(indptr, "indptr"), from_python(indices, "indices"),
                                 from_python_optional(edge_ids, "edge_ids"), num_cols);
        const Tensor wanted = from_python(rows, "rows");
        Csr out;
        {
          py::gil_scoped_release nogil;
          out = take_rows(csr, wanted, pool);
        }
        return to_tuple(std::move(out));
      },
      py::arg("indptr"), py::arg("indices"), py::arg("edge_ids"), py::arg("rows"), py::arg("num_cols"), py::arg("pool"),
      "(indptr, indices, edge_ids) of the rows asked for, in that order.");
}

}  // namespace gld

#include <pybind11/stl.h>

#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "graph/csr.h"
#include "graph/csr_pieces.h"
#include "graph/weights.h"

namespace py = pybind11;

namespace gld {
namespace {

// (indptr, indices, edge_ids), then times and weights where there are any.
py::tuple to_tuple(const Csr& csr) {
  py::list out;
  for (const Tensor* tensor : {&csr.indptr, &csr.indices, &csr.edge_ids}) out.append(*tensor);
  for (const Tensor* tensor : {&csr.times, &csr.weights})
    if (tensor->defined()) out.append(*tensor);
  return py::tuple(out);
}

}  // namespace

void bind_graph(py::module_& m) {
  py::class_<Csr, std::shared_ptr<Csr>>(
      m, "Csr",
      "Borrowed compressed sparse rows: indptr int64, indices and edge ids "
      "int32 or int64; edge_ids None where an id is its position. Optional, by edge: "
      "times int64, weights, their weight_sums float64 and positive_counts int32 (sum_weights).")
      .def(py::init([](py::object indptr, py::object indices, py::object edge_ids, int64_t num_cols, py::object times,
                       py::object weights, py::object weight_sums, py::object positive_counts) {
             Csr csr;
             csr.indptr = from_python(indptr, "indptr");
             csr.indices = from_python(indices, "indices");
             csr.edge_ids = from_python_optional(edge_ids, "edge_ids");
             csr.num_cols = num_cols;
             csr.times = from_python_optional(times, "times");
             csr.weights = from_python_optional(weights, "edge_weights");
             csr.weight_sums = from_python_optional(weight_sums, "weight_sums");
             csr.positive_counts = from_python_optional(positive_counts, "positive_counts");
             csr.watch = std::make_shared<PageWatch>();
             return std::make_shared<Csr>(make_csr(std::move(csr)));
           }),
           py::arg("indptr"), py::arg("indices"), py::arg("edge_ids"), py::arg("num_cols"),
           py::arg("times") = py::none(), py::arg("weights") = py::none(), py::arg("weight_sums") = py::none(),
           py::arg("positive_counts") = py::none())
      .def_property_readonly("num_rows", &Csr::num_rows)
      .def_readonly("num_cols", &Csr::num_cols)
      .def_property_readonly("num_edges", &Csr::num_edges)
      .def_property_readonly("sorted_by_neighbor", &Csr::sorted_by_neighbor)
      .def(
          "validate", [](const Csr& self, ThreadPool& pool) { validate_csr(self, pool); }, py::arg("pool"),
          py::call_guard<GilReleased>());

  py::class_<CsrPieces, std::shared_ptr<CsrPieces>>(m, "CsrPieces",
                                                    "A graph in the pieces of a partition book, all of them at hand: "
                                                    "pieces[p] holds the rows of partition p.")
      .def(py::init([](std::shared_ptr<PartitionBook> book, const std::vector<std::shared_ptr<Csr>>& pieces) {
             return std::make_shared<CsrPieces>(make_csr_pieces(std::move(book), {pieces.begin(), pieces.end()}));
           }),
           py::arg("book"), py::arg("pieces"));

  m.def(
      "read_at_random", [](py::object array) { read_at_random(from_python(array, "array")); }, py::arg("array"),
      "Has a mapped array read page by page, without what the system reads ahead around each.");

  // The inputs are only read and outputs are fresh memory, so other Python threads may run meanwhile.
  m.def(
      "build_csr",
      [](py::object row, py::object col, py::object edge_ids, int64_t num_rows, int64_t num_cols, ThreadPool& pool,
         py::object times, py::object weights) {
        const Tensor rows = from_python(row, "row"), cols = from_python(col, "col");
        const EdgeData data{from_python_optional(edge_ids, "edge_ids"), from_python_optional(weights, "edge_weights"),
                            from_python_optional(times, "edge_times")};
        return to_tuple(without_gil([&] { return build_csr(rows, cols, data, num_rows, num_cols, pool); }));
      },
      py::arg("row"), py::arg("col"), py::arg("edge_ids"), py::arg("num_rows"), py::arg("num_cols"), py::arg("pool"),
      py::arg("times") = py::none(), py::arg("weights") = py::none(),
      "Canonical (indptr, indices, edge_ids) of a COO list, then times (int64) and weights (dtype kept) where given.");
  m.def(
      "take_csr_rows",
      [](py::object indptr, py::object indices, py::object edge_ids, py::object rows, int64_t num_cols,
         ThreadPool& pool, py::object times, py::object weights) {
        Csr whole;
        whole.indptr = from_python(indptr, "indptr");
        whole.indices = from_python(indices, "indices");
        whole.edge_ids = from_python_optional(edge_ids, "edge_ids");
        whole.num_cols = num_cols;
        whole.times = from_python_optional(times, "times");
        whole.weights = from_python_optional(weights, "edge_weights");
        const Csr csr = make_csr(std::move(whole));
        const Tensor wanted = from_python(rows, "rows");
        return to_tuple(without_gil([&] { return take_rows(csr, wanted, pool); }));
      },
      py::arg("indptr"), py::arg("indices"), py::arg("edge_ids"), py::arg("rows"), py::arg("num_cols"), py::arg("pool"),
      py::arg("times") = py::none(), py::arg("weights") = py::none(),
      "(indptr, indices, edge_ids) of the rows asked for, in that order, then times and weights where given.");
  m.def(
      "sum_weights",
      [](py::object indptr, py::object weights, ThreadPool& pool) {
        const Tensor offsets = from_python(indptr, "indptr"), values = from_python(weights, "edge_weights");
        return without_gil([&] { return sum_weights(offsets, values, pool); });
      },
      py::arg("indptr"), py::arg("weights"), py::arg("pool"),
      "(weight_sums float64 [E], positive_counts int32 [E] or None where all weights are positive), see "
      "csrc/graph/weights.h.");
}

}  // namespace gld

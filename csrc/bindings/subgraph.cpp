#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "sampling/drop_edges.h"
#include "sampling/negative.h"
#include "sampling/ppr.h"
#include "subgraph/induced.h"

namespace py = pybind11;

namespace gld {

// All of these read immutable arrays and write fresh memory: any number of threads may be in them without the GIL.
void bind_subgraph(py::module_& m) {
  m.def(
      "induced_edges",
      [](const Csr& csr, py::object ids, py::object rows, py::object members, bool with_edge_ids, ThreadPool& pool) {
        const Tensor asked = from_python(ids, "ids"), local = from_python_optional(rows, "rows");
        const Tensor wanted = from_python(members, "members");
        InducedEdges out = without_gil([&] { return induced_edges(csr, asked, local, wanted, with_edge_ids, pool); });
        return py::make_tuple(std::move(out.counts), std::move(out.cols), std::move(out.edge_ids));
      },
      py::arg("csr"), py::arg("ids"), py::arg("rows"), py::arg("members"), py::arg("with_edge_ids"), py::arg("pool"),
      "Edges to members: (counts int64 [n], positions in members int64 [sum], edge_ids int64 [sum] or None), grouped "
      "by node in the order asked.");
  m.def(
      "drop_edges",
      [](py::object edge_index, py::object edge_ids, py::object excluded) {
        const Tensor pairs = from_python(edge_index, "edge_index"), ids = from_python(edge_ids, "edge_ids");
        const Tensor without = from_python(excluded, "excluded");
        KeptEdges out = without_gil([&] { return drop_edges(pairs, ids, without); });
        return py::make_tuple(std::move(out.edge_index), std::move(out.edge_ids), std::move(out.dropped));
      },
      py::arg("edge_index"), py::arg("edge_ids"), py::arg("excluded"),
      "Edges without those of excluded ids: (edge_index int64 [2, kept], edge_ids int64 [kept], positions of the "
      "others "
      "int64).");
  m.def(
      "has_edges",
      [](const Csr& csr, py::object rows, py::object cols, ThreadPool& pool) {
        const Tensor row = from_python(rows, "rows"), col = from_python(cols, "cols");
        return without_gil([&] { return has_edges(csr, row, col, pool); });
      },
      py::arg("csr"), py::arg("rows"), py::arg("cols"), py::arg("pool"),
      "uint8 [n]: whether row rows[i] holds the neighbor cols[i].");
  m.def(
      "random_ids",
      [](uint64_t key, py::object positions, int64_t bound, py::object weights, py::object sums) {
        const Tensor at = from_python(positions, "positions");
        const Tensor by = from_python_optional(weights, "weights"), units = from_python_optional(sums, "sums");
        return without_gil([&] { return random_ids(key, at, bound, by, units); });
      },
      py::arg("key"), py::arg("positions"), py::arg("bound"), py::arg("weights") = py::none(),
      py::arg("sums") = py::none(),
      "Ids below bound, int64 [n], the i-th a function of (key, positions[i]); uniform, or by weights and their sums "
      "as "
      "of one row (sum_weights).");
  m.def(
      "ppr_topk",
      [](const Csr& csr, py::object seeds, double alpha, double epsilon, int64_t top_k, ThreadPool& pool) {
        const Tensor ids = from_python(seeds, "seeds");
        PprScores out = without_gil([&] { return ppr_topk(csr, ids, alpha, epsilon, top_k, pool); });
        return py::make_tuple(std::move(out.counts), std::move(out.nodes), std::move(out.scores));
      },
      py::arg("csr"), py::arg("seeds"), py::arg("alpha"), py::arg("epsilon"), py::arg("top_k"), py::arg("pool"),
      "Approximate personalised PageRank: (counts int64 [n], nodes int64 [sum], scores float32 [sum]), by seed.");
}

}  // namespace gld

#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "graph/row_offsets.h"
#include "sampling/compressed_edges.h"
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
      "pair_with_nodes",
      [](py::object counts, py::object neighbors) {
        const Tensor of_each = from_python(counts, "counts"), ids = from_python(neighbors, "neighbors");
        return without_gil([&] { return pair_with_nodes(of_each, ids); });
      },
      py::arg("counts"), py::arg("neighbors"), "int64 [2, n]: neighbors, and the position of the node of each.");
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
      "compress_edges",
      [](py::object edge_index, py::object edge_ids, int64_t num_cols) {
        const Tensor pairs = from_python(edge_index, "edge_index"), ids = from_python_optional(edge_ids, "edge_ids");
        CompressedEdges out = without_gil([&] { return compress_edges(pairs, ids, num_cols); });
        return py::make_tuple(std::move(out.offsets), std::move(out.rows), std::move(out.edge_ids));
      },
      py::arg("edge_index"), py::arg("edge_ids"), py::arg("num_cols"),
      "A batch's edges by target: (offsets int32 [num_cols + 1], sources int32 [edges], edge_ids int64 [edges] or "
      "None).");
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
  py::class_<PprPushes>(m, "PprPushes", "PageRank of a graph whose rows lie elsewhere; see csrc/sampling/ppr.h.")
      .def(py::init([](py::object seeds, int64_t num_nodes, double alpha, double epsilon) {
             return std::make_unique<PprPushes>(from_python(seeds, "seeds"), num_nodes, alpha, epsilon);
           }),
           py::arg("seeds"), py::arg("num_nodes"), py::arg("alpha"), py::arg("epsilon"))
      .def(
          "advance",
          [](PprPushes& self, ThreadPool& pool) {
            PprPushes::Lacking lacking = without_gil([&] { return self.advance(pool); });  // its one caller waits
            return py::make_tuple(std::move(lacking.degrees), std::move(lacking.rows));
          },
          py::arg("pool"), "Pushes; then ids whose degrees, and ids whose rows are missing, int64. None of both: done.")
      .def(
          "give_degrees",
          [](PprPushes& self, py::object ids, py::object degrees) {
            self.give_degrees(from_python(ids, "ids"), from_python(degrees, "degrees"));
          },
          py::arg("ids"), py::arg("degrees"), "int64 [n] each.")
      .def(
          "give_rows",
          [](PprPushes& self, py::object ids, py::object counts, py::object neighbors) {
            self.give_rows(from_python(ids, "ids"), from_python(counts, "counts"), from_python(neighbors, "neighbors"));
          },
          py::arg("ids"), py::arg("counts"), py::arg("neighbors"), "int64 [n], [n] and [sum of counts].")
      .def(
          "best",
          [](PprPushes& self, int64_t top_k, ThreadPool& pool) {
            PprScores out = without_gil([&] { return self.best(top_k, pool); });
            return py::make_tuple(std::move(out.counts), std::move(out.nodes), std::move(out.scores));
          },
          py::arg("top_k"), py::arg("pool"), "As ppr_topk.");
  m.def(
      "degrees_of",
      [](const Csr& csr, py::object rows) {
        const Tensor at = from_python(rows, "rows");
        check_int64_vector(at, at.numel(), "rows");
        return degrees_of(csr, at);
      },
      py::arg("csr"), py::arg("rows"), "Edges of rows, which exist, int64 [n].");
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

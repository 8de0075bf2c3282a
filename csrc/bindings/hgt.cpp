#include <pybind11/stl.h>

#include <optional>
#include <tuple>

#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/long_work.h"
#include "bindings/module.h"
#include "sampling/hgt_budgets.h"

namespace py = pybind11;

namespace gld {

void bind_hgt(py::module_& m) {
  py::class_<HgtBudgets>(m, "HgtBudgets",
                         "Budgets of HGT sampling (see csrc/sampling/hgt_budgets.h). One per batch in flight.")
      .def(py::init([](std::vector<int64_t> num_nodes, std::optional<int64_t> most_dense) {
             return std::make_unique<HgtBudgets>(std::move(num_nodes), most_dense.value_or(kDenseRelabelLimit));
           }),
           py::arg("num_nodes"), py::arg("most_dense") = py::none())
      .def(
          "begin",
          [](HgtBudgets& self) {
            GilReleased nogil;  // a table that is cleared takes a while; the budgets belong to one batch
            self.begin();
          },
          "Forgets the last batch.")
      .def(
          "take",
          [](HgtBudgets& self, int node_type, py::object ids) {
            const Tensor nodes = from_python(ids, "seeds");
            Tensor fresh;
            {
              const LongWork nogil(nodes.numel() > kManyIds);
              fresh = self.take(node_type, nodes);
            }
            return fresh;
          },
          py::arg("node_type"), py::arg("ids"), "Takes nodes; those that the batch did not have, int64.")
      .def(
          "add",
          [](HgtBudgets& self, const std::vector<std::tuple<int, py::object, py::object>>& drawn, ThreadPool& pool) {
            std::vector<DrawnNeighbors> parts;
            for (const auto& [node_type, counts, neighbors] : drawn)
              parts.push_back({node_type, from_python(counts, "counts"), from_python(neighbors, "neighbors")});
            GilReleased nogil;  // as above
            self.add(parts, pool);
          },
          py::arg("drawn"), py::arg("pool"),
          "Of each (node type, counts int64 [n], neighbors [sum]), adds 1 / count to the budgets of the neighbors.")
      .def(
          "pick",
          [](HgtBudgets& self, const std::vector<int64_t>& counts, const std::vector<uint64_t>& keys,
             ThreadPool& pool) { return without_gil([&] { return self.pick(counts, keys, pool); }); },
          py::arg("counts"), py::arg("keys"), py::arg("pool"),
          "By node type, takes so many nodes with probabilities proportional to their squared budgets, int64.");
}

}  // namespace gld

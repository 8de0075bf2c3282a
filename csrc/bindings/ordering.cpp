#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "ordering/stream_blocks.h"
#include "ordering/zone_parts.h"

namespace py = pybind11;

namespace gld {

void bind_ordering(py::module_& m) {
  m.def(
      "stream_blocks",
      [](const py::object& offsets, const py::object& neighbors, const py::object& weights, const py::object& groups,
         int num_groups, int num_blocks, int num_passes, double slack) {
        const StreamedGraph graph{from_python(offsets, "offsets"), from_python(neighbors, "neighbors"),
                                  from_python(weights, "weights")};
        const Tensor group_view = from_python(groups, "groups");
        GilReleased release;  // the tensors are only read, and nobody else holds the output yet
        return stream_blocks(graph, group_view, num_groups, num_blocks, num_passes, slack);
      },
      py::arg("offsets"), py::arg("neighbors"), py::arg("weights"), py::arg("groups"), py::arg("num_groups"),
      py::arg("num_blocks"), py::arg("num_passes"), py::arg("slack"),
      "int32 [num_nodes]: block b of group g is g * num_blocks + b.");
  m.def(
      "zone_parts",
      [](const py::object& edges, const py::object& weights, int num_parts, double slack, int num_tries,
         uint64_t seed) {
        const Tensor edge_view = from_python(edges, "edges"), weight_view = from_python(weights, "weights");
        GilReleased release;  // as above
        return zone_parts(edge_view, weight_view, num_parts, slack, num_tries, seed);
      },
      py::arg("edges"), py::arg("weights"), py::arg("num_parts"), py::arg("slack"), py::arg("num_tries"),
      py::arg("seed"), "int64 [num_zones]: the partition of each zone.");
}

}  // namespace gld

#include <pybind11/stl.h>

#include <utility>

#include "bindings/device.h"
#include "bindings/module.h"
#include "subgraph/device_induced.h"

namespace py = pybind11;

namespace gld {
namespace {

InducedInput input_on(int device, const std::vector<const DeviceCsr*>& graphs, const py::list& members) {
  InducedInput input{graphs_on(device, graphs), {}};
  for (const py::handle& list : members) input.members.push_back(from_python_on(list, "members", device));
  return input;
}

Blocks blocks_of(const DeviceInducedPlan& plan, const py::object& result, const py::object& scratch, int device) {
  return {result, plan.layout().num_bytes, scratch, plan.layout().num_scratch_bytes, device};
}

}  // namespace

void bind_device_subgraph(py::module_& m) {
  py::class_<DeviceInducedPlan>(
      m, "DeviceInducedPlan",
      "The edges among the nodes of one batch, found by a GPU (see csrc/subgraph/device_induced.h). num_nodes of the "
      "graph and num_members of the batch by node type, edge_types are (seed type, neighbor type).")
      .def(py::init([](std::vector<int64_t> num_nodes, std::vector<int64_t> num_members,
                       const std::vector<std::pair<int, int>>& edge_types) {
             InducedShape shape{std::move(num_nodes), std::move(num_members), {}};
             for (const auto& [seed_type, neighbor_type] : edge_types)
               shape.edge_types.push_back({seed_type, neighbor_type});
             return DeviceInducedPlan(std::move(shape));
           }),
           py::arg("num_nodes"), py::arg("num_members"), py::arg("edge_types"))
      .def_property_readonly("num_bytes", [](const DeviceInducedPlan& self) { return self.layout().num_bytes; })
      .def_property_readonly("num_scratch_bytes",
                             [](const DeviceInducedPlan& self) { return self.layout().num_scratch_bytes; })
      .def_property_readonly(
          "counts",
          [](const DeviceInducedPlan& self) {
            std::vector<int64_t> out;
            for (const auto& edges : self.layout().edges) out.push_back(entries(edges.counts));
            return out;
          },
          "By edge type: first entry of the number of edges of each node. The first entries of the result are the "
          "numbers of edges by edge type, then by node type -1, or the position of a member that is outside the graph.")
      .def(
          "count",
          [](const DeviceInducedPlan& self, const std::vector<const DeviceCsr*>& graphs, const py::list& members,
             const py::object& result, const py::object& scratch, int device, uint64_t stream) {
            const InducedInput input = input_on(device, graphs, members);
            const Blocks blocks = blocks_of(self, result, scratch, device);
            py::gil_scoped_release nogil;  // launches read plain values, and may wait for room in the stream
            self.count(input, blocks.memory(), {device, stream});
          },
          py::arg("graphs"), py::arg("members"), py::arg("result"), py::arg("scratch"), py::arg("device"),
          py::arg("stream"), "Launches the search on the stream, without waiting for it.")
      .def(
          "write",
          [](const DeviceInducedPlan& self, const std::vector<const DeviceCsr*>& graphs, const py::list& members,
             const py::object& result, const py::object& scratch, const py::list& cols, const py::list& edge_ids,
             int device, uint64_t stream) {
            const InducedInput input = input_on(device, graphs, members);
            const Blocks blocks = blocks_of(self, result, scratch, device);
            if (cols.size() != edge_ids.size())
              throw InvalidArgument(message("edge_ids: expected one entry for each of ", cols.size(),
                                            " edge types, got ", edge_ids.size()));
            std::vector<InducedOutput> out;
            for (size_t type = 0; type < cols.size(); ++type)
              out.push_back({from_python_on(cols[type], "cols", device),
                             from_python_optional_on(edge_ids[type], "edge_ids", device)});
            py::gil_scoped_release nogil;  // as above
            self.write(input, blocks.memory(), out, {device, stream});
          },
          py::arg("graphs"), py::arg("members"), py::arg("result"), py::arg("scratch"), py::arg("cols"),
          py::arg("edge_ids"), py::arg("device"), py::arg("stream"),
          "Then: launches the writing of the edges, by edge type to cols (int64, as many as were counted) and, where "
          "they are not None, edge_ids.");
}

}  // namespace gld

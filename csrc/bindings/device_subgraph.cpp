#include <pybind11/stl.h>

#include <utility>

#include "bindings/device.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "sampling/device_negative.h"
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

void draw_negatives(const DeviceCsr* edges, bool rows_are_sources, const py::object& sources, const DrawnEnd& targets,
                    uint64_t key, int64_t num_trials, const py::object& is_open, int device, uint64_t stream) {
  NegativeRequest request;
  if (edges != nullptr) request.edges = &graph_on(device, *edges);
  request.rows_are_sources = rows_are_sources;
  if (py::isinstance<DrawnEnd>(sources))
    request.sources = &sources.cast<const DrawnEnd&>();
  else
    request.given_sources = from_python_on(sources, "sources", device);
  request.targets = targets;
  request.key = key;
  request.num_trials = num_trials;
  request.is_open = from_python_on(is_open, "is_open", device);
  GilReleased nogil;  // launches read plain values, and may wait for room in the stream
  draw_negatives_on_device(request, {device, stream});
}

void bind_negatives(py::module_& m) {
  py::class_<DrawnEnd>(m, "DrawnEnd",
                       "Sources or targets of negatives that a GPU draws (see csrc/sampling/device_negative.h).")
      .def(py::init([](int64_t num_nodes, const py::object& weights, const py::object& sums, const py::object& times,
                       const py::object& limits, int64_t earliest, int64_t stride, int64_t first,
                       const py::object& nodes, int device) {
             return DrawnEnd{num_nodes,
                             from_python_optional_on(weights, "weights", device),
                             from_python_optional_on(sums, "sums", device),
                             from_python_optional_on(times, "times", device),
                             from_python_optional_on(limits, "limits", device),
                             earliest,
                             stride,
                             first,
                             from_python_on(nodes, "nodes", device)};
           }),
           py::arg("num_nodes"), py::arg("weights"), py::arg("sums"), py::arg("times"), py::arg("limits"),
           py::arg("earliest"), py::arg("stride"), py::arg("first"), py::arg("nodes"), py::arg("device"));
  m.def("draw_negatives_on_device", &draw_negatives, py::arg("edges"), py::arg("rows_are_sources"), py::arg("sources"),
        py::arg("targets"), py::arg("key"), py::arg("num_trials"), py::arg("is_open"), py::arg("device"),
        py::arg("stream"),
        "Fills the slots of negatives in one launch on the stream. sources are a DrawnEnd or ids, one a slot; no pair "
        "is one of the edges, which may be None. is_open uint8 [slots] is 1 afterwards where none was found.");
  m.def(
      "has_edges_on_device",
      [](const DeviceCsr& csr, const py::object& rows, const py::object& cols, const py::object& found,
         const py::object& status, int device, uint64_t stream) {
        const Csr& graph = graph_on(device, csr);
        const Tensor row = from_python_on(rows, "rows", device), col = from_python_on(cols, "cols", device),
                     out = from_python_on(found, "found", device), state = from_python_on(status, "status", device);
        GilReleased nogil;  // as above
        has_edges_on_device(graph, row, col, out, state, {device, stream});
      },
      py::arg("csr"), py::arg("rows"), py::arg("cols"), py::arg("found"), py::arg("status"), py::arg("device"),
      py::arg("stream"),
      "found[i] (uint8): whether row rows[i] holds the neighbor cols[i]. status int64 [1] holds -1, and afterwards the "
      "first i of a pair that is outside the graph, if any.");
}

void bind_induced(py::module_& m) {
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
            GilReleased nogil;  // launches read plain values, and may wait for room in the stream
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
            GilReleased nogil;  // as above
            self.write(input, blocks.memory(), out, {device, stream});
          },
          py::arg("graphs"), py::arg("members"), py::arg("result"), py::arg("scratch"), py::arg("cols"),
          py::arg("edge_ids"), py::arg("device"), py::arg("stream"),
          "Then: launches the writing of the edges, by edge type to cols (int64, as many as were counted) and, where "
          "they are not None, edge_ids.");
}

}  // namespace

void bind_device_subgraph(py::module_& m) {
  bind_induced(m);
  bind_negatives(m);
}

}  // namespace gld

// What runs on a GPU. The classes exist in every build; without CUDA nothing can be made that they take.
#include "bindings/device.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "common/cuda.h"
#include "feature/device_gather.h"
#include "sampling/device_batch.h"

namespace py = pybind11;

namespace gld {
namespace {

struct DeviceRowStore {
  RowStore store;
  Tensor row_of_id;
  int device;
  bool is_over_link;
};

// Stretches of host memory (address, bytes) that are locked, or about to be, or still are. The GIL guards them.
using Ranges = std::set<std::pair<uintptr_t, size_t>>;
Ranges& locked_ranges() {
  static Ranges ranges;
  return ranges;
}

bool& pages_stay_locked() {
  static bool they_do = false;
  return they_do;
}

// Host memory that is locked while this lives. It is made and dropped with the GIL, and locks and unlocks without:
// either may take long, or wait for what a GPU reads.
class PinnedRange {
 public:
  PinnedRange(Tensor memory, bool read_only, int device)
      : memory_(std::move(memory)),
        place_(reinterpret_cast<uintptr_t>(memory_.data), memory_.nbytes()),
        device_(device) {
    const bool is_new = locked_ranges().insert(place_).second;
    try {
      without_gil([&] { pin_host_memory(memory_.data, memory_.nbytes(), read_only, device_); });
    } catch (...) {
      if (is_new) locked_ranges().erase(place_);
      throw;
    }
  }
  // At the end of the process all memory goes with it, and a kernel may still read this.
  ~PinnedRange() {
    if (pages_stay_locked() || interpreter_ends()) {
      new Tensor(std::move(memory_));
      return;
    }
    without_gil([this] { unpin_host_memory(memory_.data, device_); });
    locked_ranges().erase(place_);
  }
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;

 private:
  Tensor memory_;
  std::pair<uintptr_t, size_t> place_;
  int device_;
};

using CacheTuple = std::tuple<py::object, py::object, py::object, py::object, py::object, int64_t, int64_t>;
using EdgeTypeTuple = std::tuple<int, int, int64_t, int64_t, bool>;
using SeedTuple = std::tuple<int, int64_t, bool>;
using PaddingTuple = std::tuple<std::vector<int64_t>, std::vector<int64_t>>;

DeviceRowCache row_cache(const CacheTuple& given, int device) {
  const auto& [rows, uses, slot_rows, counts, answers, first_row, gather] = given;
  return {from_python_on(rows, "rows", device),
          from_python_on(uses, "uses", device),
          from_python_on(slot_rows, "slot_rows", device),
          from_python_on(counts, "counts", device),
          from_python_on(answers, "answers", device),
          first_row,
          gather};
}

DeviceBatchPlan make_plan(std::vector<int64_t> num_nodes, const std::vector<EdgeTypeTuple>& edge_types,
                          const std::vector<SeedTuple>& seeds, std::vector<std::vector<int64_t>> fanouts,
                          bool with_edge_ids, bool disjoint, const std::optional<PaddingTuple>& padding) {
  BatchShape shape;
  shape.num_nodes = std::move(num_nodes);
  for (const auto& [seed_type, neighbor_type, num_edges, max_degree, replace] : edge_types)
    shape.edge_types.push_back({{seed_type, neighbor_type}, num_edges, max_degree, replace});
  for (const auto& [node_type, count, unique] : seeds) shape.seeds.push_back({node_type, count, unique});
  shape.fanouts = std::move(fanouts);
  shape.with_edge_ids = with_edge_ids;
  shape.disjoint = disjoint;
  if (padding) shape.padding = Padding{std::get<0>(*padding), std::get<1>(*padding)};
  return DeviceBatchPlan(std::move(shape));
}

// What both kinds of batches are sampled from.
BatchInput input_of(const std::vector<const DeviceCsr*>& graphs, std::vector<DrawMethod> how, const py::object& counter,
                    int device) {
  BatchInput input;
  input.graphs = graphs_on(device, graphs);
  input.how = std::move(how);
  input.counter = from_python_on(counter, "counter", device);
  return input;
}

void launch_into(const DeviceBatchPlan& plan, const BatchInput& input, const py::object& result,
                 const py::object& scratch, CudaStream stream) {
  const Blocks blocks(result, plan.layout().num_bytes, scratch, plan.layout().num_scratch_bytes, stream.device);
  GilReleased nogil;  // launches read plain values, and may wait for room in the stream
  plan.launch(input, blocks.memory(), stream);
}

void launch(const DeviceBatchPlan& plan, const std::vector<const DeviceCsr*>& graphs, std::vector<DrawMethod> how,
            const py::list& seeds, const py::object& times, const py::object& counter, const py::object& result,
            const py::object& scratch, int device, uint64_t stream) {
  BatchInput input = input_of(graphs, std::move(how), counter, device);
  for (const py::handle& list : seeds) input.seeds.push_back(from_python_on(list, "seeds", device));
  input.times = from_python_optional_on(times, "times", device);
  launch_into(plan, input, result, scratch, {device, stream});
}

void launch_padded(const DeviceBatchPlan& plan, const std::vector<const DeviceCsr*>& graphs,
                   std::vector<DrawMethod> how, const py::object& nodes, const py::object& times, bool shuffle,
                   const py::object& counter, const py::object& failure, const py::object& result,
                   const py::object& scratch, int device, uint64_t stream) {
  BatchInput input = input_of(graphs, std::move(how), counter, device);
  input.schedule = {from_python_on(nodes, "nodes", device), from_python_optional_on(times, "times", device), shuffle};
  input.failure = from_python_on(failure, "failure", device);
  launch_into(plan, input, result, scratch, {device, stream});
}

void bind_batches(py::module_& m) {
  m.attr("DEVICE_CACHE_COUNTS") = 2 * RowCacheView::kSpread;
  m.attr("BATCH_BAD_ROW") = bad_row_of(0);
  m.attr("BATCH_BAD_NEIGHBOR") = bad_neighbor_of(0);
  m.attr("BATCH_OVERFLOW") = overflow_of(0);
  py::class_<DeviceCsr, std::shared_ptr<DeviceCsr>>(
      m, "DeviceCsr", "As Csr, in memory that a GPU can read. Entries are not checked: the caller has done so.")
      .def(py::init([](py::object indptr, py::object indices, py::object edge_ids, int64_t num_cols, int device,
                       py::object times, py::object weights, py::object weight_sums, py::object positive_counts) {
             Csr csr;
             csr.indptr = from_python_on(indptr, "indptr", device);
             csr.indices = from_python_on(indices, "indices", device);
             csr.edge_ids = from_python_optional_on(edge_ids, "edge_ids", device);
             csr.num_cols = num_cols;
             csr.times = from_python_optional_on(times, "times", device);
             csr.weights = from_python_optional_on(weights, "edge_weights", device);
             csr.weight_sums = from_python_optional_on(weight_sums, "weight_sums", device);
             csr.positive_counts = from_python_optional_on(positive_counts, "positive_counts", device);
             check_csr_arrays(csr);
             return std::make_shared<DeviceCsr>(DeviceCsr{std::move(csr), device});
           }),
           py::arg("indptr"), py::arg("indices"), py::arg("edge_ids"), py::arg("num_cols"), py::arg("device"),
           py::arg("times") = py::none(), py::arg("weights") = py::none(), py::arg("weight_sums") = py::none(),
           py::arg("positive_counts") = py::none());

  py::class_<DeviceBatchPlan>(
      m, "DeviceBatchPlan",
      "Batches of one shape on a GPU (see csrc/sampling/device_batch.h). edge_types are (seed type, neighbor type, "
      "edges, largest degree, replace), seeds are (node type, count, unique); fanouts[hop][edge type]. padding is "
      "(max_nodes, max_edges) of batches of "
      "fixed shapes, -1 for bounds.")
      .def(py::init(&make_plan), py::arg("num_nodes"), py::arg("edge_types"), py::arg("seeds"), py::arg("fanouts"),
           py::arg("with_edge_ids"), py::arg("disjoint"), py::arg("padding") = py::none())
      .def_property_readonly("num_bytes", [](const DeviceBatchPlan& self) { return self.layout().num_bytes; })
      .def_property_readonly("num_scratch_bytes",
                             [](const DeviceBatchPlan& self) { return self.layout().num_scratch_bytes; })
      .def_property_readonly(
          "num_counters", [](const DeviceBatchPlan& self) { return self.layout().num_counters; },
          "Counters are the first entries of the result; behind them stands -1, or the position of a seed that is "
          "outside the graph.")
      .def_property_readonly(
          "nodes",
          [](const DeviceBatchPlan& self) {
            std::vector<std::tuple<int64_t, int64_t, std::vector<int>>> out;
            for (const auto& nodes : self.layout().nodes)
              out.emplace_back(entries(nodes.ids), entries(nodes.trees), nodes.counters);
            return out;
          },
          "By node type: first entry of the ids, of the trees, and the counters after the seeds and each hop.")
      .def_property_readonly(
          "edges",
          [](const DeviceBatchPlan& self) {
            std::vector<std::tuple<int64_t, int64_t, std::vector<int>>> out;
            for (const auto& edges : self.layout().edges)
              out.emplace_back(entries(edges.rows), entries(edges.edge_ids), edges.counters);
            return out;
          },
          "By edge type: first entry of rows, behind which columns stand, and of edge ids; the counters before the "
          "first hop and after each.")
      .def_property_readonly(
          "local_ids",
          [](const DeviceBatchPlan& self) {
            std::vector<std::pair<int64_t, int64_t>> out;
            for (const auto& step : self.layout().seed_steps) out.emplace_back(entries(step.local_ids), step.count);
            return out;
          },
          "By list of seeds: first entry and number of their local ids.")
      .def_property_readonly(
          "padded",
          [](const DeviceBatchPlan& self) {
            std::vector<std::tuple<int64_t, int64_t>> nodes, edges;
            for (const auto& type : self.layout().nodes) nodes.emplace_back(type.size, entries(type.mask));
            for (const auto& type : self.layout().edges) edges.emplace_back(type.capacity, entries(type.mask));
            const auto& seeds = self.layout().seeds;
            return std::tuple(nodes, edges,
                              std::tuple(entries(seeds.positions), entries(seeds.times), entries(seeds.mask)));
          },
          "Of padded batches: by node type and by edge type the size of the arrays, and the first entry whose bytes "
          "are "
          "the mask; of the seeds the first entry of their positions, of their times, of their mask.")
      .def("launch_padded", &launch_padded, py::arg("graphs"), py::arg("how"), py::arg("nodes"), py::arg("times"),
           py::arg("shuffle"), py::arg("counter"), py::arg("failure"), py::arg("result"), py::arg("scratch"),
           py::arg("device"), py::arg("stream"),
           "As launch(), of a padded batch: its seeds are those of the schedule over these nodes (and their times). "
           "failure int64 [3] keeps status, epoch and index of the first batch that did not fit; -1 beforehand.")
      .def(
          "launch", &launch, py::arg("graphs"), py::arg("how"), py::arg("seeds"), py::arg("times"), py::arg("counter"),
          py::arg("result"), py::arg("scratch"), py::arg("device"), py::arg("stream"),
          "Launches a batch on the stream, without waiting for it. All tensors are read or written by the GPU and must "
          "live until it is done.");
}

}  // namespace

void bind_device(py::module_& m) {
  bind_batches(m);
  py::class_<PinnedRange>(m, "PinnedRange",
                          "Locks the memory of a tensor on the host where it lies, for all GPUs to read, as long as "
                          "this lives. `device` is a GPU that the process uses. CudaError: the system refuses.")
      .def(py::init([](py::object tensor, bool read_only, int device) {
             return std::make_unique<PinnedRange>(from_python(tensor, "tensor"), read_only, device);
           }),
           py::arg("tensor"), py::arg("read_only"), py::arg("device"));

  m.def(
      "keep_pages_locked", [] { pages_stay_locked() = true; },
      "Has each PinnedRange that is dropped from now on leave its memory locked, and in place: for the end of the "
      "process.");

  m.def(
      "locked_ranges", [] { return locked_ranges(); },
      "Stretches of memory (address, bytes) of those that live, or are being made or dropped.");

  m.def(
      "can_gpu_read",
      [](py::object tensor, int device) {
        const Tensor memory = from_python(tensor, "tensor");
        return open_to_gpu(memory.data, memory.nbytes(), device);
      },
      py::arg("tensor"), py::arg("device"),
      "Whether a tensor on the host, of at least one byte, lies in memory that the GPU reads: pinned, at both ends.");
  py::class_<DeviceRowStore>(
      m, "DeviceRowStore",
      "As RowStore, of memory that a GPU can read; at most 16 pieces. row_of_id: the row of each "
      "id, -1 for none; None: ids are rows.")
      .def(py::init([](const py::list& tensors, int device, py::object row_of_id) {
             std::vector<Tensor> parts;
             bool is_over_link = false;
             for (const py::handle& tensor : tensors) {
               parts.push_back(from_python_on(tensor, "tensors", device));
               is_over_link |= !lies_on(tensor, device);
             }
             return DeviceRowStore{make_row_store(std::move(parts)),
                                   from_python_optional_on(row_of_id, "row_of_id", device), device, is_over_link};
           }),
           py::arg("tensors"), py::arg("device"), py::arg("row_of_id") = py::none())
      .def(
          "gather",
          [](const DeviceRowStore& self, py::object ids, py::object positions, py::object out, py::object status,
             uint64_t stream, const std::optional<CacheTuple>& cache) {
            const Tensor wanted = from_python_on(ids, "ids", self.device),
                         places = from_python_optional_on(positions, "positions", self.device),
                         target = from_python_on(out, "out", self.device),
                         state = from_python_on(status, "status", self.device);
            const DeviceRowCache cached = cache ? row_cache(*cache, self.device) : DeviceRowCache{};
            GilReleased nogil;  // as for batches
            gather_on_device(self.store, self.row_of_id, wanted, places, target, state, {self.device, stream}, cached,
                             self.is_over_link);
          },
          py::arg("ids"), py::arg("positions"), py::arg("out"), py::arg("status"), py::arg("stream"),
          py::arg("cache") = py::none(),
          "out[positions[i]] = store[row_of_id[ids[i]]] (out[i] where positions is None), cast to the dtype of out, in "
          "one launch on the stream; three with a cache, (rows, uses, slot_rows, counts, answers, first_row, gather) "
          "as "
          "DeviceRowCache in feature/device_gather.h. status int64 [1] holds -1, and afterwards the first i whose row "
          "does not exist, "
          "if "
          "any.");
}

}  // namespace gld

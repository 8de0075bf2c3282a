#include <pybind11/stl.h>

#include <numeric>
#include <optional>
#include <tuple>
#include <variant>

#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/long_work.h"
#include "bindings/module.h"
#include "bindings/subgraphs.h"
#include "common/rng.h"
#include "common/shuffle.h"
#include "sampling/batch_builder.h"
#include "sampling/methods.h"
#include "sampling/neighbor_sampler.h"

namespace py = pybind11;

namespace gld {
namespace {

// The edges of a type: a tensor, or EdgeRuns where they are unwritten.
py::list edges_of(SampledSubgraph& batch) {
  py::list edges;
  for (size_t type = 0; type < batch.edge_index.size(); ++type) {
    if (batch.edge_index[type].defined())
      edges.append(std::move(batch.edge_index[type]));
    else
      edges.append(std::move(batch.unwritten[type]));
  }
  return edges;
}

Tensor shuffled_range(int64_t begin, int64_t end, int64_t n, uint64_t key) {
  if (n < 0 || n > Permutation::kMaxSize)
    throw InvalidArgument(message("n: expected 0 to ", Permutation::kMaxSize, ", got ", n));
  if (begin < 0 || begin > end || end > n)
    throw InvalidArgument(message("begin, end: expected places in [0, ", n, "), got ", begin, " to ", end));
  Tensor out = empty({end - begin}, kInt64);
  std::iota(out.as<int64_t>(), out.as<int64_t>() + (end - begin), begin);
  take_shuffled(Shuffle(n, key), out.as<int64_t>(), out.as<int64_t>(), end - begin);
  return out;
}

using HeldGraph = std::variant<std::shared_ptr<Csr>, std::shared_ptr<CsrPieces>>;

// All hops of one batch over graphs at hand. fanouts[hop][edge type]; 0 skips the edge type in that hop.
void sample_all_hops(BatchBuilder& builder, const std::vector<HeldGraph>& graphs,
                     const std::vector<std::vector<int64_t>>& fanouts, const std::vector<DrawMethod>& how,
                     bool with_edge_ids, const std::vector<int64_t>& counter, ThreadPool& pool) {
  for (size_t hop = 0; hop < fanouts.size(); ++hop) {
    for (size_t type = 0; type < graphs.size(); ++type) {
      if (fanouts[hop][type] == 0) continue;
      const uint64_t key = draw_key(counter[0], counter[1], counter[2], hop, type);
      const HopDraw draw{fanouts[hop][type], how[type], key, with_edge_ids};
      std::visit([&](const auto& graph) { builder.sample_hop(type, *graph, draw, pool); }, graphs[type]);
    }
    builder.next_hop();
  }
}

}  // namespace

py::tuple to_tuple(SampledSubgraph batch) {
  py::list edges = edges_of(batch);
  return py::make_tuple(std::move(batch.nodes), std::move(edges), std::move(batch.edge_ids), batch.num_sampled_nodes,
                        batch.num_sampled_edges, std::move(batch.trees));
}

void bind_sampling(py::module_& m) {
  m.def("shuffle_key", &shuffle_key, py::arg("seed"), py::arg("epoch"));
  m.def("take_shuffled", &shuffled_range, py::arg("begin"), py::arg("end"), py::arg("n"), py::arg("key"),
        "The inputs at places [begin, end) of the order that n inputs have under a key, int64 [end - begin].");
  m.def("draw_key", &draw_key, py::arg("seed"), py::arg("epoch"), py::arg("batch"), py::arg("hop"),
        py::arg("edge_type"), "Key of all draws of one hop along one edge type in one batch.");

  m.def(
      "draw_methods",
      [] {
        std::vector<std::tuple<const char*, bool, bool>> found;
        for (const MethodTraits& each : Methods::kTraits)
          found.emplace_back(each.name, each.reads_weights, each.may_replace);
        return found;
      },
      "Of each method its name, whether it reads edge weights, and whether it can draw with replacement.");
  py::enum_<TimeRule>(m, "TimeRule")
      .value("IGNORE", TimeRule::kIgnore)
      .value("BEFORE", TimeRule::kBefore)
      .value("LATEST", TimeRule::kLatest);
  py::class_<DrawMethod>(m, "DrawMethod", "How neighbors along one edge type are drawn, in all hops of a loader.")
      .def(py::init([](const char* method, bool replace, TimeRule times) {
             return DrawMethod{method_named(method), replace, times};
           }),
           py::arg("method") = methods::Uniform::kTraits.name, py::arg("replace") = false,
           py::arg("times") = TimeRule::kIgnore);

  m.def(
      "sample_neighbors",
      [](const Csr& csr, py::object ids, py::object rows, int64_t fanout, DrawMethod how, uint64_t key,
         bool with_edge_ids, ThreadPool& pool, py::object trees, py::object times) {
        const HopNodes nodes{from_python(ids, "ids"), from_python_optional(rows, "rows"),
                             from_python_optional(trees, "trees"), from_python_optional(times, "times")};
        // Reads shared immutable arrays and writes fresh memory: any number of threads may be in here.
        OneHop out = without_gil([&] { return sample_neighbors(csr, nodes, {fanout, how, key, with_edge_ids}, pool); });
        return py::make_tuple(std::move(out.counts), std::move(out.neighbors), std::move(out.edge_ids));
      },
      py::arg("csr"), py::arg("ids"), py::arg("rows"), py::arg("fanout"), py::arg("how"), py::arg("key"),
      py::arg("with_edge_ids"), py::arg("pool"), py::arg("trees") = py::none(), py::arg("times") = py::none(),
      "One hop: (counts int64 [n], neighbors [sum], edge_ids int64 [sum] or None), grouped by node in the order "
      "asked.");

  py::class_<EdgeRuns>(m, "EdgeRuns", "Edges of a batch that are not written yet (see csrc/sampling/edge_runs.h).")
      .def("__len__", &EdgeRuns::size)
      .def(
          "write",
          [](const EdgeRuns& self, py::object edge_index) {
            const Tensor out = from_python(edge_index, "edge_index");
            if (out.dtype != kInt64 || out.shape != std::vector<int64_t>{2, self.size()})
              throw InvalidArgument(message("edge_index: expected int64 [2, ", self.size(), "]"));
            GilReleased nogil;  // nobody changes these edges any more
            self.write(out.as<int64_t>());
          },
          py::arg("edge_index"), "Writes them into int64 [2, len(self)].");
  py::class_<BatchBuilder, std::shared_ptr<BatchBuilder>>(
      m, "BatchBuilder",
      "Grows one mini-batch hop by hop (see csrc/sampling/batch_builder.h). One per batch in "
      "flight; edge_types are (seed type, neighbor type) pairs of integers.")
      .def(py::init([](std::vector<int64_t> num_nodes, const std::vector<std::pair<int, int>>& edge_types,
                       std::optional<int64_t> most_dense) {
             std::vector<EdgeTypeSpec> specs;
             for (auto [seed_type, neighbor_type] : edge_types) specs.push_back({seed_type, neighbor_type});
             return std::make_shared<BatchBuilder>(std::move(num_nodes), std::move(specs),
                                                   most_dense.value_or(kDenseRelabelLimit));
           }),
           py::arg("num_nodes"), py::arg("edge_types"), py::arg("most_dense") = py::none())
      .def(
          "begin",
          [](BatchBuilder& self, int64_t num_seeds, int64_t max_new_nodes, bool with_edge_ids, bool disjoint) {
            const LongWork nogil(self.begin_clears(num_seeds, max_new_nodes, disjoint));
            self.begin(num_seeds, max_new_nodes, with_edge_ids, disjoint);
          },
          py::arg("num_seeds"), py::arg("max_new_nodes"), py::arg("with_edge_ids"), py::arg("disjoint") = false)
      .def(
          "add_seeds",
          [](BatchBuilder& self, int node_type, py::object seeds, py::object times, bool unique) {
            const Tensor ids = from_python(seeds, "seeds"), seed_times = from_python_optional(times, "times");
            Tensor local_ids;
            {
              const LongWork nogil(ids.numel() > kManyIds);
              local_ids = self.add_seeds(node_type, ids, seed_times, unique);
            }
            return std::move(local_ids);
          },
          py::arg("node_type"), py::arg("seeds"), py::arg("times") = py::none(), py::arg("unique") = false,
          "Local ids of the seeds, int64 [n].")
      .def(
          "frontier",
          [](const BatchBuilder& self, int type) {
            HopNodes nodes;
            {
              const LongWork nogil(self.frontier_size(type) > kManyIds);
              nodes = self.frontier(type);
            }
            return py::make_tuple(std::move(nodes.ids), std::move(nodes.trees), std::move(nodes.times));
          },
          py::arg("node_type"), "(ids, trees or None, times or None) of the nodes that the current hop samples for.")
      .def(
          "add_hop",
          [](BatchBuilder& self, int edge_type, py::object counts, py::object neighbors, py::object edge_ids) {
            const Tensor c = from_python(counts, "counts"), n = from_python(neighbors, "neighbors");
            const Tensor e = from_python_optional(edge_ids, "edge_ids");
            GilReleased nogil;  // the builder belongs to one batch, and so to one caller
            self.add_hop(edge_type, c, n, e);
          },
          py::arg("edge_type"), py::arg("counts"), py::arg("neighbors"), py::arg("edge_ids"))
      .def("next_hop", &BatchBuilder::next_hop)
      .def(
          "finish",
          [](BatchBuilder& self, bool leaves_edges) {
            SampledSubgraph batch;
            {
              const LongWork nogil(self.finish_writes(leaves_edges));
              batch = self.finish(leaves_edges);
            }
            return to_tuple(std::move(batch));
          },
          py::arg("leaves_edges") = false,
          "(nodes, edge_index, edge_ids, num_sampled_nodes, num_sampled_edges, trees), each a list by type. With "
          "leaves_edges, edges may be EdgeRuns in the place of a tensor.")
      .def(
          "sample",
          [](BatchBuilder& self, const std::vector<HeldGraph>& graphs, const std::vector<std::vector<int64_t>>& fanouts,
             const std::vector<DrawMethod>& how, bool with_edge_ids, const std::vector<int64_t>& counter,
             ThreadPool& pool, bool leaves_edges) {
            for (const auto& hop : fanouts)
              if (hop.size() != graphs.size())
                throw InvalidArgument("num_neighbors: expected one fan-out per edge type in every hop");
            if (how.size() != graphs.size()) throw InvalidArgument("how: expected one draw method per edge type");
            if (counter.size() != 3) throw InvalidArgument("counter: expected (seed, epoch, batch)");
            SampledSubgraph batch;
            {
              GilReleased nogil;  // as above
              sample_all_hops(self, graphs, fanouts, how, with_edge_ids, counter, pool);
              batch = self.finish(leaves_edges, &pool);
            }
            return to_tuple(std::move(batch));
          },
          py::arg("graphs"), py::arg("fanouts"), py::arg("how"), py::arg("with_edge_ids"), py::arg("counter"),
          py::arg("pool"), py::arg("leaves_edges") = false,
          "After the seeds: every hop of the batch in one call, then finish().");
}

}  // namespace gld

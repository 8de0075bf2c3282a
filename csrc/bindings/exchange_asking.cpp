#include <pybind11/stl.h>

#include <array>
#include <utility>

#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "bindings/os_error.h"
#include "bindings/outgoing.h"
#include "exchange/ask_once.h"
#include "exchange/runner.h"
#include "exchange/sample_exchange.h"
#include "exchange/single_round.h"
#include "rpc/engine.h"

namespace py = pybind11;

namespace gld {
namespace {

using exchange::Asked;
using exchange::Ending;
using exchange::Exchange;
using exchange::PartitionedGraph;
using exchange::Runner;
using exchange::SampleExchange;
using exchange::SingleRound;

std::shared_ptr<PartitionedGraph> make_graph(const std::vector<std::pair<int, int>>& edge_types,
                                             const std::vector<std::shared_ptr<PartitionBook>>& books,
                                             const std::vector<std::vector<std::shared_ptr<Csr>>>& pieces,
                                             std::vector<std::vector<int64_t>> fanouts, std::vector<DrawMethod> draws,
                                             bool with_edge_ids, int64_t seed) {
  auto graph = std::make_shared<PartitionedGraph>();
  for (const auto& [seed_type, neighbor_type] : edge_types) graph->edge_types.push_back({seed_type, neighbor_type});
  graph->books.assign(books.begin(), books.end());
  for (const auto& of_partition : pieces) graph->pieces.emplace_back(of_partition.begin(), of_partition.end());
  graph->fanouts = std::move(fanouts);
  graph->draws = std::move(draws);
  graph->with_edge_ids = with_edge_ids;
  graph->seed = seed;
  check_graph(*graph);
  return graph;
}

py::tuple ask_together(const std::vector<std::array<py::object, 4>>& given) {
  std::vector<LocatedRows> lookups;
  for (const auto& [rows, ids, positions, offsets] : given)
    lookups.push_back({{},
                       from_python(rows, "rows"),
                       from_python(ids, "ids"),
                       from_python(positions, "positions"),
                       from_python(offsets, "offsets")});
  exchange::AskedOnce asked = without_gil([&] { return exchange::ask_once(lookups); });
  return py::make_tuple(std::move(asked.rows), std::move(asked.ids), std::move(asked.offsets));
}

const char* name_of(Ending::What what) {
  switch (what) {
    case Ending::What::kDone:
      return "done";
    case Ending::What::kError:
      return "error";
    case Ending::What::kFailed:
      return "failed";
    case Ending::What::kLost:
      return "lost";
    case Ending::What::kLate:
      return "late";
    case Ending::What::kMalformed:
      return "malformed";
  }
  return "";
}

// Its threads may be about to give up what is Python's: who waits for their end must not have the GIL, and while the
// interpreter ends they never get it.
void close(Runner& runner) {
  if (!Py_IsInitialized()) return;
  const GilReleased released;
  runner.close();
}

std::shared_ptr<Runner> make_runner(rpc::Engine& engine, int num_threads) {
  const auto end = [](Runner* runner) {
    if (!Py_IsInitialized()) return;  // it goes with the process
    if (PyGILState_Check() != 0) close(*runner);
    delete runner;
  };
  return std::shared_ptr<Runner>(new Runner(engine.queries().client, num_threads), end);
}

}  // namespace

void bind_exchange_asking(py::module_& m) {
  py::class_<PartitionedGraph, std::shared_ptr<PartitionedGraph>>(
      m, "PartitionedGraph", "A graph whose rows lie with several owners, and how batches are sampled from it.")
      .def(py::init(&make_graph), py::kw_only(), py::arg("edge_types"), py::arg("books"), py::arg("pieces"),
           py::arg("fanouts"), py::arg("draws"), py::arg("with_edge_ids"), py::arg("seed"));

  py::class_<Exchange, std::shared_ptr<Exchange>>(m, "Exchange",
                                                  "Rounds of queries to holders of partitions (exchange.h).")
      .def(
          "next",
          [](Exchange& self) {
            std::vector<Asked> asked = without_gil([&] { return self.next(); });
            py::list out;
            for (const Asked& each : asked)
              out.append(py::make_tuple(each.partition, head_of(each.query), joined(each.query)));
            return out;
          },
          "The queries of the next round, (partition, head, payload) each; none where all is there.")
      .def("meanwhile", &Exchange::meanwhile, py::call_guard<GilReleased>(), "What can be done while others work.")
      .def(
          "take",
          [](Exchange& self, size_t i, const py::object& head, const py::object& payload) {
            const CarriedValue value(head, payload);
            without_gil([&] { self.take(i, value.get()); });
          },
          py::arg("i"), py::arg("head"), py::arg("payload"), "The answer to the i-th query of the round.")
      .def("stitch", &Exchange::stitch, py::call_guard<GilReleased>(), "All answers of the round were taken.");

  py::class_<SampleExchange, Exchange, std::shared_ptr<SampleExchange>>(m, "SampleExchange", "The hops of batches.")
      .def(py::init([](std::shared_ptr<PartitionedGraph> graph,
                       const std::vector<std::tuple<std::shared_ptr<BatchBuilder>, uint64_t, uint64_t>>& batches,
                       std::shared_ptr<ThreadPool> pool) {
             std::vector<SampleExchange::Batch> held;
             for (const auto& [builder, epoch, index] : batches) held.push_back({builder, epoch, index});
             return std::make_shared<SampleExchange>(std::move(graph), std::move(held), std::move(pool));
           }),
           py::arg("graph"), py::arg("batches"), py::arg("pool"), "Of each batch its builder, epoch and index.");

  py::class_<SingleRound, Exchange, std::shared_ptr<SingleRound>>(m, "SingleRound", "Queries known beforehand.")
      .def(py::init([](const std::vector<std::tuple<int, std::shared_ptr<rpc::OutgoingValue>, std::vector<int64_t>>>&
                           questions) {
             std::vector<SingleRound::Question> held;
             for (const auto& [partition, query, lengths] : questions) held.push_back({partition, *query, lengths});
             return std::make_shared<SingleRound>(std::move(held));
           }),
           py::arg("questions"),
           "Of each its partition, query, and the lengths of the tensors in its answer (ANY_LENGTH, MAY_BE_ABSENT).")
      .def(
          "answers", [](const SingleRound& self) { return self.answers(); },
          "In the order of the questions, their tensors.")
      .def_property_readonly_static("ANY_LENGTH", [](const py::object&) { return SingleRound::kAnyLength; })
      .def_property_readonly_static("MAY_BE_ABSENT", [](const py::object&) { return SingleRound::kMayBeAbsent; });

  py::class_<Ending>(m, "ExchangeEnding", "How an exchange ended.")
      .def_readonly("run", &Ending::run)
      .def_property_readonly(
          "what", [](const Ending& self) { return name_of(self.what); },
          "'done' | 'error' | 'failed' | 'lost' | 'late' | 'malformed'")
      .def_readonly("partition", &Ending::partition)
      .def_property_readonly("failure", [](const Ending& self) { return py::bytes(self.failure); })
      .def(
          "raise_error",
          [](const Ending& self) {
            if (self.error) std::rethrow_exception(self.error);
          },
          "Raises the error of this side, where it was one.");
  py::class_<Runner, std::shared_ptr<Runner>>(m, "ExchangeRunner", "Drives exchanges with threads of its own.")
      .def(py::init([](rpc::Engine& engine, int num_threads) {
             return as_os_error([&] { return make_runner(engine, num_threads); });
           }),
           py::arg("engine"), py::arg("num_threads"))
      .def(
          "start",
          [](Runner& self, std::shared_ptr<Exchange> exchange, std::vector<std::shared_ptr<rpc::Stream>> streams,
             std::string service, double timeout_s) {
            return self.start(std::move(exchange), {std::move(streams), std::move(service), timeout_s});
          },
          py::arg("exchange"), py::arg("streams"), py::arg("service"), py::arg("timeout_s"),
          "Begins an exchange with the holders at these streams (by partition; None where there is none); its number.")
      .def("cancel", &Runner::cancel, py::arg("run"), py::call_guard<GilReleased>(),
           "Nobody wants it any more: its end is told soon.")
      .def_property_readonly(
          "times",
          [](const Runner& self) {
            const exchange::StageTimes times = self.times();
            return py::make_tuple(times.split, times.own, times.wait, times.stitch);
          },
          "Nanoseconds of all exchanges: splitting; what is done here meanwhile; waiting beyond that; stitching.")
      .def("fileno", &Runner::fd, "Can be read when poll() has something to tell.")
      .def("poll", &Runner::poll, "What ended since the last call.")
      .def("close", &close, "Ends the threads; exchanges that are under way end nowhere. Idempotent.");
  m.def("ask_once", &ask_together, py::arg("lookups"),
        "Of several lookups, (rows, ids, positions, offsets) of each: the rows of each as places in the answer to what "
        "all ask for together, and the ids and offsets of that, each id once.");
}

}  // namespace gld

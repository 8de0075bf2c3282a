#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <utility>

#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "bindings/os_error.h"
#include "bindings/outgoing.h"
#include "bindings/subgraphs.h"
#include "exchange/ask_once.h"
#include "exchange/row_lookup.h"
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
using exchange::RecentRows;
using exchange::RowGroup;
using exchange::RowLookup;
using exchange::RowPlan;
using exchange::RowsExchange;
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

// In the core's own memory: what Python borrowed cannot be given up where it was sent, without the GIL.
Tensor copied(const py::handle& object, const char* name) {
  const Tensor from = from_python(py::reinterpret_borrow<py::object>(object), name);
  Tensor to = empty(from.shape, from.dtype);
  if (from.nbytes() > 0) std::memcpy(to.data, from.data, from.nbytes());
  return to;
}

using GroupArgument = std::tuple<std::vector<std::string>, std::shared_ptr<PartitionBook>, std::shared_ptr<SortedIds>,
                                 py::object, std::shared_ptr<RecentRows>, int>;

std::shared_ptr<RowPlan> make_plan(const std::vector<GroupArgument>& groups, std::vector<bool> is_asked, bool repeats) {
  auto plan = std::make_shared<RowPlan>();
  for (const auto& [stores, book, copied_ids, copy_rows, recent, node_type] : groups) {
    plan->groups.push_back({stores, book, copied_ids, from_python_optional(copy_rows, "copy_rows"), recent, node_type});
  }
  plan->is_asked = std::move(is_asked);
  plan->repeats = repeats;
  check_plan(*plan);
  return plan;
}

// None, ids, or places as locate_owned() gives them.
RowLookup::Wanted wanted_of(const py::handle& object) {
  if (object.is_none()) return {};
  if (!py::isinstance<py::tuple>(object)) return {from_python(py::reinterpret_borrow<py::object>(object), "ids"), {}};
  const auto places = py::reinterpret_borrow<py::tuple>(object);
  if (places.size() != 7) throw InvalidArgument(message("wanted: expected 7 parts of places, got ", places.size()));
  const auto part = [&](size_t i, const char* name) { return from_python(py::object(places[i]), name); };
  return {{},
          LocatedRows{part(0, "owners"), part(1, "rows"), copied(places[2], "ids"), part(3, "positions"),
                      part(4, "offsets"), places[5].cast<int64_t>(), places[6].cast<int64_t>()}};
}

std::shared_ptr<RowsExchange> make_rows_exchange(const std::shared_ptr<RowPlan>& plan, const py::sequence& wanted,
                                                 std::shared_ptr<ThreadPool> pool) {
  std::vector<std::vector<RowLookup::Wanted>> given;
  for (const py::handle& of_batch : wanted) {
    auto& groups = given.emplace_back();
    for (const py::handle& of_group : py::reinterpret_borrow<py::sequence>(of_batch))
      groups.push_back(wanted_of(of_group));
  }
  return without_gil([&] { return std::make_shared<RowsExchange>(plan, given, std::move(pool)); });
}

void bind_rows(py::module_& m) {
  py::class_<RecentRows, std::shared_ptr<RecentRows>>(m, "RecentRows",
                                                      "Rows that other partitions answered lately (recent_rows.h).")
      .def(py::init<size_t, int64_t, int64_t, int>(), py::arg("num_stores"), py::arg("num_ids"), py::arg("block_rows"),
           py::arg("num_blocks"))
      .def(
          "keep",
          [](RecentRows& self, const py::object& ids, const std::vector<std::shared_ptr<RowStore>>& answers,
             ThreadPool& pool) {
            const Tensor given = from_python(ids, "ids");
            const std::vector<std::shared_ptr<const RowStore>> rows(answers.begin(), answers.end());
            GilReleased nogil;  // it has a lock of its own
            self.keep(given, rows, pool);
          },
          py::arg("ids"), py::arg("answers"), py::arg("pool"), "Keeps rows of ids, one RowStore for each store.")
      .def(
          "find_also",
          [](RecentRows& self, std::shared_ptr<PartitionBook> book, std::vector<bool> is_asked,
             std::shared_ptr<SortedIds> copied, const py::object& copy_rows) {
            RecentRows::AtHand at_hand{std::move(book), std::move(is_asked), std::move(copied),
                                       from_python_optional(copy_rows, "copy_rows")};
            GilReleased nogil;  // nobody looks anything up yet
            self.find_also(std::move(at_hand));
          },
          py::arg("book"), py::arg("is_asked"), py::arg("copied"), py::arg("copy_rows"),
          "Look-ups find rows of partitions at hand, and copies, by the same table.")
      .def_property_readonly("block_rows", &RecentRows::block_rows)
      .def("forget", &RecentRows::forget, py::call_guard<GilReleased>(), "Keeps nothing of what it has.");
  py::class_<RowPlan, std::shared_ptr<RowPlan>>(m, "RowPlan", "Which rows lookups want, and where those are.")
      .def(py::init(&make_plan), py::arg("groups"), py::arg("is_asked"), py::arg("repeats") = false,
           "Each group: stores whose rows are looked up by the same ids, their book (None: places are given), ids of "
           "copies or None, the rows of these or None, RecentRows or None, the type of the nodes or -1.");
  py::class_<RowLookup, std::shared_ptr<RowLookup>>(m, "RowLookup", "Rows that some batches look up (row_lookup.h).")
      .def(
          "gather",
          [](const RowLookup& self, size_t batch, size_t group, size_t store,
             const std::vector<std::shared_ptr<RowStore>>& held, const py::object& out) {
            const Tensor target = from_python(out, "out");
            GilReleased nogil;  // rows are only read, and nobody else holds the output yet
            self.gather(batch, group, store, held, target);
          },
          py::arg("batch"), py::arg("group"), py::arg("store"), py::arg("held"), py::arg("out"),
          "Writes the rows of a store; held: by partition at hand its rows, then copies or None.")
      .def("keep", &RowLookup::keep, py::call_guard<GilReleased>(), "Keeps what was answered, where rows are kept.")
      .def(
          "counts",
          [](const RowLookup& self, size_t batch, size_t group) {
            const RowLookup::Counts counts = self.counts(batch, group);
            return py::make_tuple(counts.copied, counts.recent, counts.asked);
          },
          py::arg("batch"), py::arg("group"), "How many ids were copied, recent, and asked for.")
      .def(
          "located",
          [](const RowLookup& self, size_t batch, size_t group) {
            const LocatedRows& located = self.located(batch, group);
            return py::make_tuple(located.owners, located.rows);
          },
          py::arg("batch"), py::arg("group"), "Owners int32 and rows int64 of the ids; see locate_rows().");
  py::class_<RowsExchange, Exchange, std::shared_ptr<RowsExchange>>(m, "RowsExchange", "A lookup of known ids.")
      .def(py::init(&make_rows_exchange), py::arg("plan"), py::arg("wanted"), py::arg("pool"),
           "wanted: by batch and group ids, places as locate_owned() gives them, or None.")
      .def_property_readonly("asks", &RowsExchange::asks, "Whether others have to be asked.")
      .def_property_readonly("rows", &RowsExchange::rows);
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

  bind_rows(m);

  py::class_<SampleExchange, Exchange, std::shared_ptr<SampleExchange>>(m, "SampleExchange", "The hops of batches.")
      .def(py::init([](std::shared_ptr<PartitionedGraph> graph,
                       const std::vector<std::tuple<std::shared_ptr<BatchBuilder>, uint64_t, uint64_t>>& batches,
                       std::shared_ptr<ThreadPool> pool, bool leaves_edges, std::shared_ptr<RowPlan> rows) {
             std::vector<SampleExchange::Batch> held;
             for (const auto& [builder, epoch, index] : batches) held.push_back({builder, epoch, index});
             return std::make_shared<SampleExchange>(std::move(graph), std::move(held), std::move(pool), leaves_edges,
                                                     std::move(rows));
           }),
           py::arg("graph"), py::arg("batches"), py::arg("pool"), py::arg("leaves_edges") = false,
           py::arg("rows") = nullptr,
           "Of each batch its builder, epoch and index; the rows of whose nodes are looked up, or None.")
      .def(
          "take_batches",
          [](SampleExchange& self) {
            py::list batches;
            for (SampledSubgraph& batch : self.take_batches()) batches.append(to_tuple(std::move(batch)));
            return batches;
          },
          "When all is there, once: each batch as BatchBuilder.finish() gives it.")
      .def_property_readonly("rows", &SampleExchange::rows, "Their rows; None where none are looked up.")
      .def_property_readonly("sampled_at_ns", &SampleExchange::sampled_at_ns,
                             "When the last hop was over, by the clock of time.perf_counter_ns().");

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

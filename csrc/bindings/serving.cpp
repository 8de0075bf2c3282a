#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <tuple>

#include "bindings/gil.h"
#include "bindings/module.h"
#include "bindings/os_error.h"
#include "rpc/mailbox.h"
#include "serving/batch_server.h"
#include "serving/batch_shelf.h"
#include "serving/worker_feed.h"

namespace py = pybind11;

namespace gld {
namespace {

using serving::BatchServer;
using serving::BatchShare;
using serving::BatchShelf;
using serving::Item;
using serving::WorkerFeed;

// A batch as Python has it: a buffer, which may be written where the batch has a slot of its own. Its memory stays
// mapped as long as this object is; release() gives the slot back, whoever still looks at it.
struct FinishedBatch {
  Item item;
};

int get_buffer(PyObject* object, Py_buffer* view, int flags) {
  const Item& item = py::cast<FinishedBatch&>(py::handle(object)).item;
  return PyBuffer_FillInfo(view, object, const_cast<void*>(item.payload), static_cast<py::ssize_t>(item.payload_bytes),
                           /*readonly=*/item.offset == 0, flags);
}

void setup_buffer_protocol(PyHeapTypeObject* type) {
  type->as_buffer.bf_getbuffer = get_buffer;
  type->ht_type.tp_as_buffer = &type->as_buffer;
}

// What came of fetches of this interpreter's, for its loop. Its threads are others', which never wait for the GIL.
class Fetches : public std::enable_shared_from_this<Fetches> {
 public:
  explicit Fetches(std::shared_ptr<BatchShelf> shelf) : shelf_(std::move(shelf)) {}

  int fd() const { return bell_.fd(); }

  // Its number, and the shelf's.
  std::pair<uint64_t, uint64_t> fetch(int64_t run, int64_t index, std::optional<int64_t> oldest) {
    const uint64_t number = ++last_;
    return {number, shelf_->fetch(run, index, oldest, std::make_shared<Waiter>(weak_from_this(), number))};
  }

  struct Outcome {
    uint64_t number;
    std::optional<Item> item;
    std::string failure;
  };
  std::vector<Outcome> poll() {
    bell_.hush();
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(outcomes_, {});
  }

 private:
  class Waiter : public serving::Receiver {
   public:
    Waiter(std::weak_ptr<Fetches> fetches, uint64_t number) : fetches_(std::move(fetches)), number_(number) {}
    void take(Item item) override { tell({number_, std::move(item), {}}); }
    void fail(const std::string& failure) override { tell({number_, std::nullopt, failure}); }

   private:
    void tell(Outcome outcome) {
      if (const auto fetches = fetches_.lock()) fetches->add(std::move(outcome));
    }
    const std::weak_ptr<Fetches> fetches_;
    const uint64_t number_;
  };
  void add(Outcome outcome) {
    std::lock_guard<std::mutex> lock(mutex_);
    outcomes_.push_back(std::move(outcome));
    if (outcomes_.size() == 1) bell_.ring();
  }

  const std::shared_ptr<BatchShelf> shelf_;
  const rpc::Bell bell_;
  uint64_t last_ = 0;
  std::mutex mutex_;
  std::vector<Outcome> outcomes_;
};

py::list poll(Fetches& fetches) {
  py::list out;
  for (Fetches::Outcome& outcome : fetches.poll()) {
    if (outcome.item) {
      out.append(py::make_tuple(outcome.number, FinishedBatch{std::move(*outcome.item)}, py::none()));
    } else {
      out.append(py::make_tuple(outcome.number, py::none(), py::bytes(outcome.failure)));
    }
  }
  return out;
}

using ShareArgument =
    std::tuple<std::vector<int64_t>, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, std::string>;

void begin_run(BatchShelf& shelf, int64_t run, int64_t num_batches, const ShareArgument& argument,
               std::optional<uint64_t> credit_bytes, const py::bytes& end) {
  const auto& [single, start, stop, stride, size, first, step, begin, shown] = argument;
  Item item;
  item.head = std::string(end);
  without_gil([&] {
    shelf.begin_run(run, num_batches, {single, start, stop, stride, size, first, step, begin, shown}, credit_bytes,
                    std::move(item));
  });
}

}  // namespace

void bind_serving(py::module_& m) {
  py::class_<FinishedBatch>(m, "FinishedBatch", py::custom_type_setup(setup_buffer_protocol),
                            "A batch as its worker encoded it, or several: a buffer of its payload.")
      .def_property_readonly("head", [](const FinishedBatch& self) { return py::bytes(self.item.head); })
      .def_property_readonly("nbytes", [](const FinishedBatch& self) { return self.item.payload_bytes; })
      .def_property_readonly(
          "place", [](const FinishedBatch& self) { return std::pair(self.item.region, self.item.offset); },
          "The number of the region that it lies in, and the offset of its slot; zeros where it has none.")
      .def("release", [](FinishedBatch& self) { self.item.owner.reset(); }, "Gives its slot back. Idempotent.");

  py::class_<BatchShelf, std::shared_ptr<BatchShelf>>(m, "BatchShelf",
                                                      "Finished batches of a producer (csrc/serving/batch_shelf.h).")
      .def(py::init<std::string, int>(), py::arg("name"), py::arg("num_workers"))
      .def("begin_run", &begin_run, py::arg("run"), py::arg("num_batches"), py::arg("share"), py::arg("credit_bytes"),
           py::arg("end"),
           "Begins a run; `share`: single batches, then start, stop and step of a range, size, first, step, begin, and "
           "the share for people; `end`: the head of what is given beyond the last batch.")
      .def(
          "fail",
          [](BatchShelf& self, int worker, const std::string& failure) {
            without_gil([&] { self.fail(worker, failure); });
          },
          py::arg("worker"), py::arg("failure"), "A worker will make nothing more.")
      .def(
          "end", [](BatchShelf& self, const std::string& failure) { without_gil([&] { self.end(failure); }); },
          py::arg("failure"), "Nothing is given any more. Idempotent.")
      .def("forget", &BatchShelf::forget, py::arg("fetch"), py::call_guard<GilReleased>())
      .def("grant", &BatchShelf::grant, py::arg("run"), py::arg("oldest"), py::call_guard<GilReleased>(),
           "The reader of a run has read all its batches before `oldest`.")
      .def("announced", &BatchShelf::announced, py::arg("worker"), "Batches of the run that a worker has announced.")
      .def_property_readonly("num_ready", &BatchShelf::num_ready, "Messages that wait for who asks for them.")
      .def_property_readonly("credit", &BatchShelf::credit,
                             "Limit and bytes of what may be, and is, with the reader unread.")
      .def_property_readonly("credit_ns", &BatchShelf::credit_ns, "How long batches waited for credit alone.");

  py::class_<Fetches, std::shared_ptr<Fetches>>(m, "LocalFetches", "Fetches of this process, and what came of them.")
      .def(py::init([](std::shared_ptr<BatchShelf> shelf) {
             return as_os_error([&] { return std::make_shared<Fetches>(std::move(shelf)); });
           }),
           py::arg("shelf"))
      .def("fetch", &Fetches::fetch, py::arg("run"), py::arg("index"), py::arg("oldest"), py::call_guard<GilReleased>(),
           "Its number, and that for `BatchShelf.forget`.")
      .def("fileno", &Fetches::fd, "Can be read when poll() has something to tell.")
      .def("poll", &poll, "(number, batch, None) or (number, None, failure) of each that is over.");

  py::class_<WorkerFeed, std::shared_ptr<WorkerFeed>>(m, "WorkerFeed", "What one process of a worker makes.")
      .def(py::init<std::shared_ptr<BatchShelf>, int, uint64_t, uint64_t, uint32_t>(), py::arg("shelf"),
           py::arg("worker"), py::arg("ring_bytes"), py::arg("most_together_bytes"), py::arg("max_messages"))
      .def_property_readonly("ring_path", &WorkerFeed::ring_path, "Where it announces what it has made.")
      .def_property_readonly("returns_path", &WorkerFeed::returns_path, "Where it hears of free slots.")
      .def(
          "open",
          [](WorkerFeed& self, const std::string& region_path, uint64_t region_bytes, uint64_t region_number) {
            as_os_error([&] { self.open(region_path, region_bytes, region_number); });
          },
          py::arg("region_path"), py::arg("region_bytes"), py::arg("region_number"), "It is up: begins to take.")
      .def("drain", &WorkerFeed::drain, py::call_guard<GilReleased>(),
           "All that was announced until now is on the shelf when this returns. False: nothing more will be.")
      .def("close", &WorkerFeed::close, py::call_guard<GilReleased>(), "Nothing more is taken. Idempotent.");
  m.def("take_returned", &serving::take_returned, py::arg("ring"), "Offsets of slots that were given back.");

  py::class_<BatchServer, rpc::Answerer, std::shared_ptr<BatchServer>>(m, "BatchServer", "Gives batches to clients.")
      .def(py::init<>())
      .def("add", &BatchServer::add, py::arg("producer"), py::arg("shelf"), py::arg("client_key"), py::arg("owner"))
      .def("end", &BatchServer::end, py::arg("failure"), py::call_guard<GilReleased>(),
           "Whoever asks from now on is told this.")
      .def("remove", &BatchServer::remove, py::arg("producer"), py::call_guard<GilReleased>());
  m.def(
      "fetch_query",
      [](uint64_t producer, int64_t run, int64_t index, std::optional<int64_t> oldest) {
        return py::bytes(serving::fetch_query(producer, run, index, oldest));
      },
      py::arg("producer"), py::arg("run"), py::arg("index"), py::arg("oldest"), "The head of a query for a batch.");
}

}  // namespace gld

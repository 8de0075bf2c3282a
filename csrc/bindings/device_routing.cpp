#include "routing/device_routing.h"

#include <pybind11/stl.h>

#include <tuple>

#include "bindings/device.h"
#include "bindings/gil.h"
#include "bindings/module.h"

namespace py = pybind11;

namespace gld {
namespace {

struct PlacedBook {
  DeviceBook book;
  int device;
};

PlacedBook place_book(const PartitionBook& book, const py::object& offsets, const py::object& owners,
                      const py::object& rows, int device) {
  BookArrays arrays{from_python_on(offsets, "offsets", device), from_python_optional_on(owners, "owners", device),
                    from_python_optional_on(rows, "rows", device)};
  return {DeviceBook(book, std::move(arrays)), device};
}

void split(const PlacedBook& self, const py::object& ids, const py::object& out_ids, const py::object& rows,
           const py::object& positions, const py::object& offsets, const py::object& status, const py::object& scratch,
           uint64_t stream) {
  const int device = self.device;
  const Tensor wanted = from_python_on(ids, "ids", device);
  const Split out{from_python_on(out_ids, "out_ids", device), from_python_on(rows, "rows", device),
                  from_python_on(positions, "positions", device), from_python_on(offsets, "offsets", device)};
  const Tensor state = from_python_on(status, "status", device), memory = from_python_on(scratch, "scratch", device);
  GilReleased nogil;  // launches read plain values, and may wait for room in the stream
  split_on_device(self.book, wanted, out, state, memory, {device, stream});
}

StitchInput stitch_input(const py::object& positions, const py::object& offsets, const py::sequence& parts,
                         int device) {
  StitchInput input{from_python_on(positions, "positions", device), from_python(offsets, "offsets"), {}};
  for (const py::handle& part : parts) {
    if (part.is_none()) {
      input.parts.emplace_back();
      continue;
    }
    const auto [counts, neighbors, edge_ids] = part.cast<std::tuple<py::object, py::object, py::object>>();
    input.parts.push_back({from_python_on(counts, "counts", device), from_python_on(neighbors, "neighbors", device),
                           from_python_optional_on(edge_ids, "edge_ids", device)});
  }
  return input;
}

}  // namespace

void bind_device_routing(py::module_& m) {
  py::class_<PlacedBook>(m, "DeviceBook", "As PartitionBook, in memory that a GPU can read.")
      .def(py::init(&place_book), py::arg("book"), py::arg("offsets"), py::arg("owners"), py::arg("rows"),
           py::arg("device"), "The arrays of the book (see PartitionBook.arrays), on the device.")
      .def(
          "scratch_bytes",
          [](const PlacedBook& self, int64_t num_ids) {
            return SplitLayout(num_ids, self.book.num_partitions()).num_bytes;
          },
          py::arg("num_ids"))
      .def("split", &split, py::arg("ids"), py::arg("out_ids"), py::arg("rows"), py::arg("positions"),
           py::arg("offsets"), py::arg("status"), py::arg("scratch"), py::arg("stream"),
           "Launches split_by_owner on the stream. status int64 [1] is -1 afterwards, or the position of the first id "
           "that the book does not hold.");
  m.def(
      "stitch_shape",
      [](const py::object& positions, const py::object& offsets, const py::sequence& parts, int device) {
        const StitchShape shape = stitch_shape(stitch_input(positions, offsets, parts, device));
        py::object edge_ids = py::none();
        if (shape.with_edge_ids) edge_ids = py::cast(to_string(shape.edge_ids));
        return py::make_tuple(shape.num_neighbors, to_string(shape.neighbors), edge_ids,
                              StitchLayout(shape.num_ids).num_bytes);
      },
      py::arg("positions"), py::arg("offsets"), py::arg("parts"), py::arg("device"),
      "Of answers to a split, whose offsets lie on the host: (number of neighbors, their dtype, that of edge ids or "
      "None, bytes of scratch memory).");
  m.def(
      "stitch_on_device",
      [](const py::object& positions, const py::object& offsets, const py::sequence& parts, const py::object& counts,
         const py::object& neighbors, const py::object& edge_ids, const py::object& status, const py::object& scratch,
         int device, uint64_t stream) {
        const StitchInput input = stitch_input(positions, offsets, parts, device);
        const Neighbors out{from_python_on(counts, "counts", device), from_python_on(neighbors, "neighbors", device),
                            from_python_optional_on(edge_ids, "edge_ids", device)};
        const Tensor state = from_python_on(status, "status", device),
                     memory = from_python_on(scratch, "scratch", device);
        GilReleased nogil;  // as above
        stitch_on_device(input, out, state, memory, {device, stream});
      },
      py::arg("positions"), py::arg("offsets"), py::arg("parts"), py::arg("counts"), py::arg("neighbors"),
      py::arg("edge_ids"), py::arg("status"), py::arg("scratch"), py::arg("device"), py::arg("stream"),
      "Launches stitch_neighbors on the stream. status int64 [3] is -1 thrice afterwards, or tells the first count "
      "that "
      "is negative or above its part's neighbors, the first position that is wrong (both by place in the buckets) and "
      "the first part that does not add up.");
}

}  // namespace gld

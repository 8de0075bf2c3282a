#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "feature/gather.h"
#include "feature/learned_rows.h"

namespace py = pybind11;

namespace gld {
namespace {

// The GIL may be released everywhere: inputs are only read, and the caller holds the table's lock.
void bind_learned_rows(py::module_& m) {
  py::enum_<FirstRows>(m, "FirstRows")
      .value("ZEROS", FirstRows::kZeros)
      .value("UNIFORM", FirstRows::kUniform)
      .value("NORMAL", FirstRows::kNormal);
  m.def(
      "first_rows",
      [](py::object ids, uint64_t key, FirstRows kind, double scale, py::object rows) {
        const Tensor of = from_python(ids, "ids"), into = from_python(rows, "rows");
        GilReleased nogil;
        first_rows(of, key, kind, scale, into);
      },
      py::arg("ids"), py::arg("key"), py::arg("kind"), py::arg("scale"), py::arg("rows"));
  m.def(
      "sum_by_id",
      [](py::object ids, py::object rows) {
        const Tensor of = from_python(ids, "ids"), added = from_python(rows, "rows");
        return without_gil([&] { return sum_by_id(of, added); });
      },
      py::arg("ids"), py::arg("rows"));
  m.def(
      "sgd_step",
      [](py::object table, py::object at, py::object grads, double rate) {
        const Tensor rows = from_python(table, "table"), where = from_python(at, "at"),
                     by = from_python(grads, "grads");
        GilReleased nogil;
        sgd_step(rows, where, by, rate);
      },
      py::arg("table"), py::arg("at"), py::arg("grads"), py::arg("rate"));
  m.def(
      "adagrad_step",
      [](py::object table, py::object sums, py::object at, py::object grads, double rate, double eps) {
        const Tensor rows = from_python(table, "table"), state = from_python(sums, "sums"),
                     where = from_python(at, "at"), by = from_python(grads, "grads");
        GilReleased nogil;
        adagrad_step(rows, state, where, by, rate, eps);
      },
      py::arg("table"), py::arg("sums"), py::arg("at"), py::arg("grads"), py::arg("rate"), py::arg("eps"));
  m.def(
      "adam_step",
      [](py::object table, py::object means, py::object squares, py::object at, py::object grads, double rate,
         double beta1, double beta2, double eps, int64_t step) {
        const Tensor rows = from_python(table, "table"), first = from_python(means, "means"),
                     second = from_python(squares, "squares"), where = from_python(at, "at"),
                     by = from_python(grads, "grads");
        GilReleased nogil;
        adam_step(rows, first, second, where, by, {rate, beta1, beta2, eps, step});
      },
      py::arg("table"), py::arg("means"), py::arg("squares"), py::arg("at"), py::arg("grads"), py::arg("rate"),
      py::arg("beta1"), py::arg("beta2"), py::arg("eps"), py::arg("step"));
}

}  // namespace

void bind_feature(py::module_& m) {
  bind_learned_rows(m);
  py::class_<DiskRows, std::shared_ptr<DiskRows>>(m, "DiskRows", "Rows of a file behind a cache of bounded size.")
      .def(py::init([](std::string path, uint64_t inode, int64_t offset, int64_t num_rows, int64_t row_bytes,
                       int64_t memory_bytes, double timeout_s) {
             RowFile file{std::move(path), offset, num_rows, row_bytes, inode};
             return DiskRows::open(std::move(file), {memory_bytes, timeout_s, nullptr});
           }),
           py::arg("path"), py::arg("inode"), py::arg("offset"), py::arg("num_rows"), py::arg("row_bytes"),
           py::arg("memory_bytes"), py::arg("timeout_s") = DiskRowsSettings().timeout_s)
      .def_static("least_bytes", &DiskRows::least_bytes, py::arg("num_rows"), py::arg("row_bytes"),
                  "The least memory with which so many rows may be opened.")
      .def(
          "announce",
          [](DiskRows& self, py::object rows) {
            const Tensor given = from_python(rows, "rows");
            GilReleased nogil;  // rows are only read
            return self.announce(given);
          },
          py::arg("rows"), "Rows that will be asked for together, after those announced before; returns a number.")
      .def(
          "finish",
          [](DiskRows& self, int64_t use) {
            GilReleased nogil;  // nothing of Python's is touched
            self.finish(use);
          },
          py::arg("use"), "What was announced under a number was asked for, or will not be.")
      .def_property_readonly("num_slots", &DiskRows::num_slots)
      .def_property_readonly("num_uses", &DiskRows::num_uses)
      .def_property_readonly("counts", [](const DiskRows& self) {
        const DiskRowsCounts counts = self.counts();
        py::dict by_name;
        by_name["hits"] = counts.hits;
        by_name["misses"] = counts.misses;
        by_name["rows_ahead"] = counts.rows_ahead;
        by_name["bytes"] = counts.bytes;
        return by_name;
      });

  py::class_<RowStore, std::shared_ptr<RowStore>>(m, "RowStore", "Borrowed row-major pieces of one logical tensor.")
      .def(py::init([](const py::list& tensors, std::shared_ptr<DiskRows> disk) {
             std::vector<Tensor> parts;
             for (const py::handle& tensor : tensors) parts.push_back(from_python(tensor, "tensors"));
             return std::make_shared<RowStore>(make_row_store(std::move(parts), std::move(disk)));
           }),
           py::arg("tensors"), py::arg("disk") = nullptr)
      .def_property_readonly("num_rows", &RowStore::num_rows)
      .def(
          "gather",
          [](const RowStore& self, py::object rows, ThreadPool& pool, py::object positions, py::object out,
             const std::optional<std::string>& dtype) -> py::object {
            const Tensor wanted = from_python(rows, "rows"), targets = from_python_optional(positions, "positions");
            Tensor target = from_python_optional(out, "out");
            const bool into = target.defined();
            const std::optional<DType> cast_to = dtype ? std::optional(parse_dtype(*dtype)) : std::nullopt;
            // Rows are only read, and nobody else holds the output yet.
            target = without_gil([&] { return gather_rows(self, wanted, targets, std::move(target), pool, cast_to); });
            return into ? py::none() : to_python(std::move(target));
          },
          py::arg("rows"), py::arg("pool"), py::arg("positions") = py::none(), py::arg("out") = py::none(),
          py::arg("dtype") = py::none(),
          "Rows in the order asked as a new pooled tensor; or, given `out`, written to out[positions] (None "
          "returned). `dtype`: the name of a floating type to cast to on the way, such as \"float16\".");

  m.def(
      "gather_located",
      [](const std::vector<std::shared_ptr<RowStore>>& stores, py::object owners, py::object rows, py::object out,
         ThreadPool& pool) {
        const Tensor located = from_python(owners, "owners"), wanted = from_python(rows, "rows"),
                     target = from_python(out, "out");
        std::vector<const RowStore*> held;
        for (const auto& store : stores) held.push_back(store.get());
        GilReleased nogil;  // rows are only read, and nobody else holds the output yet
        gather_located(held, located, wanted, target, pool);
      },
      py::arg("stores"), py::arg("owners"), py::arg("rows"), py::arg("out"), py::arg("pool"),
      "out[i] = stores[owners[i]][rows[i]], cast to the dtype of `out`.");
}

}  // namespace gld

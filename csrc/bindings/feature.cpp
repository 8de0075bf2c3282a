#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "feature/gather.h"

namespace py = pybind11;

namespace gld {

void bind_feature(py::module_& m) {
  py::class_<RowStore, std::shared_ptr<RowStore>>(m, "RowStore", "Borrowed row-major pieces of one logical tensor.")
      .def(py::init([](const py::list& tensors) {
             std::vector<Tensor> parts;
             for (const py::handle& tensor : tensors) parts.push_back(from_python(tensor, "tensors"));
             return std::make_shared<RowStore>(make_row_store(std::move(parts)));
           }),
           py::arg("tensors"))
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

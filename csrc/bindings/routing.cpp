#include <pybind11/stl.h>

#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "common/thread_pool.h"
#include "routing/narrowed.h"
#include "routing/partition_book.h"
#include "routing/recent_ids.h"
#include "routing/sorted_ids.h"
#include "routing/split.h"

namespace py = pybind11;

namespace gld {
namespace {

using Book = std::shared_ptr<const PartitionBook>;

std::pair<Tensor, Tensor> locate(const PartitionBook& book, const py::object& ids, ThreadPool* pool) {
  const Tensor input = from_python(ids, "ids");
  return without_gil([&] {
    check_index_vector(input, "ids");
    std::pair<Tensor, Tensor> found(empty({input.numel()}, kInt32), empty({input.numel()}, kInt64));
    book.locate(input, found.first.as<int32_t>(), found.second.as<int64_t>(), pool);
    return found;
  });
}

Tensor local_rows(const PartitionBook& book, const py::object& ids, int partition, ThreadPool* pool) {
  const Tensor input = from_python(ids, "ids");
  return without_gil([&] {
    check_index_vector(input, "ids");
    Tensor rows = empty({input.numel()}, kInt64);
    book.local_rows(input, partition, rows.as<int64_t>(), pool);
    return rows;
  });
}

Tensor permute_array(const py::object& indices, int64_t n, uint64_t key, bool inverse, ThreadPool* pool) {
  const Tensor input = from_python(indices, "indices");
  return without_gil([&] { return permute_indices(input, n, key, inverse, pool); });
}

py::tuple split(const PartitionBook& book, const py::object& ids, ThreadPool* pool) {
  const Tensor input = from_python(ids, "ids");
  Split result = without_gil([&] { return split_by_owner(input, book, pool); });
  return py::make_tuple(std::move(result.ids), std::move(result.rows), std::move(result.positions),
                        std::move(result.offsets));
}

using HeldIds = std::shared_ptr<SortedIds>;

KeptCopies kept_copies(const HeldIds& ids, const py::object& rows, const RecentIds* recent = nullptr) {
  KeptCopies copies{ids.get(), {}, recent};
  if (ids == nullptr) return copies;
  copies.rows = from_python_optional(rows, "copy_rows");
  if (copies.rows.defined()) check_vector(copies.rows, kInt64, ids->size(), "copy_rows");
  return copies;
}

py::tuple as_tuple(LocatedRows found) {
  return py::make_tuple(std::move(found.owners), std::move(found.rows), std::move(found.ids),
                        std::move(found.positions), std::move(found.offsets), found.num_copied, found.num_recent);
}

py::tuple locate_for_lookup(const PartitionBook& book, const py::object& ids, const std::vector<bool>& is_asked,
                            ThreadPool* pool, const HeldIds& copied, const py::object& copy_rows,
                            const RecentIds* recent) {
  const Tensor input = from_python(ids, "ids");
  const KeptCopies copies = kept_copies(copied, copy_rows, recent);
  return as_tuple(without_gil([&] { return locate_rows(input, book, is_asked, pool, copies); }));
}

std::shared_ptr<SortedIds> sorted_ids(const py::object& sorted, ThreadPool* pool, bool with_bits) {
  Tensor keys = from_python(sorted, "sorted");
  GilReleased release;
  return std::make_shared<SortedIds>(std::move(keys), pool, with_bits);
}

Tensor find(const SortedIds& sorted, const py::object& ids, ThreadPool* pool) {
  const Tensor asked = from_python(ids, "ids");
  return without_gil([&] { return sorted.find(asked, pool); });
}

py::tuple locate_owned_rows(const py::object& owners, const py::object& ids, const std::vector<HeldIds>& at_hand,
                            ThreadPool* pool, const HeldIds& copied, const py::object& copy_rows) {
  const Tensor known = from_python(owners, "owners"), input = from_python(ids, "ids");
  std::vector<const SortedIds*> lists;
  for (const auto& list : at_hand) lists.push_back(list.get());
  const KeptCopies copies = kept_copies(copied, copy_rows);
  return as_tuple(without_gil([&] { return locate_owned(known, input, lists, pool, copies); }));
}

template <Tensor (*kNarrowed)(const Tensor&)>
Tensor narrow(const py::object& values) {
  const Tensor wide = from_python(values, "values");
  return without_gil([&] { return kNarrowed(wide); });
}

NeighborPart neighbor_part(const py::handle& item, size_t partition) {
  if (item.is_none()) return {};
  try {
    if (!py::isinstance<py::sequence>(item) || py::len(item) != 3)
      throw InvalidArgument(message(": expected (counts, neighbors, edge_ids or None), or None, got ",
                                    std::string(py::str(py::type::of(item).attr("__name__")))));
    const auto part = py::reinterpret_borrow<py::sequence>(item);
    return {from_python(py::object(part[0]), ".counts"), from_python(py::object(part[1]), ".neighbors"),
            from_python_optional(py::object(part[2]), ".edge_ids")};
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(message("parts[", partition, "]", error.what()));
  }
}

py::tuple stitch(const py::object& positions, const py::object& offsets, const py::sequence& parts, ThreadPool* pool,
                 int64_t max_count) {
  const Tensor position_view = from_python(positions, "positions"), offset_view = from_python(offsets, "offsets");
  std::vector<NeighborPart> views;
  for (const py::handle& part : parts) views.push_back(neighbor_part(part, views.size()));
  Neighbors result = without_gil([&] { return stitch_neighbors(position_view, offset_view, views, pool, max_count); });
  return py::make_tuple(std::move(result.counts), std::move(result.neighbors), std::move(result.edge_ids));
}

void scatter(const py::object& out, const py::object& positions, const py::object& rows, ThreadPool* pool) {
  const Tensor target = from_python(out, "out"), where = from_python(positions, "positions"),
               source = from_python(rows, "rows");
  GilReleased release;
  scatter_rows(target, where, source, pool);
}

}  // namespace

void bind_routing(py::module_& m) {
  // Immutable, so that losing const at the boundary gives nothing away.
  using Held = std::shared_ptr<PartitionBook>;
  const auto held = [](const Book& book) { return std::const_pointer_cast<PartitionBook>(book); };
  py::class_<PartitionBook, Held>(m, "PartitionBook", "Which partition owns an id, and its row there. Immutable.")
      .def_static(
          "range",
          [held](const py::object& bounds) { return held(PartitionBook::range(from_python(bounds, "bounds"))); },
          py::arg("bounds"), "Partition p owns [bounds[p], bounds[p + 1]).")
      .def_static(
          "permuted",
          [held](int64_t num_ids, int num_partitions, uint64_t key) {
            return held(PartitionBook::permuted(num_ids, num_partitions, key));
          },
          py::arg("num_ids"), py::arg("num_partitions"), py::arg("key"), "Near-equal ranges of a keyed bijection.")
      .def_static(
          "table",
          [held](const py::object& owners, const py::object& rows, int num_partitions) {
            const Tensor owner_view = from_python(owners, "owners"), row_view = from_python(rows, "rows");
            GilReleased release;
            return held(PartitionBook::table(owner_view, row_view, num_partitions));
          },
          py::arg("owners"), py::arg("rows"), py::arg("num_partitions"), "Any assignment; borrows both tensors.")
      .def_static(
          "zones",
          [held](const py::object& place, const py::object& bounds, const py::object& owners, int num_partitions) {
            const Tensor place_view = from_python(place, "place"), bound_view = from_python(bounds, "bounds"),
                         owner_view = from_python(owners, "owners");
            GilReleased release;
            return held(PartitionBook::zones(place_view, bound_view, owner_view, num_partitions));
          },
          py::arg("place"), py::arg("bounds"), py::arg("owners"), py::arg("num_partitions"),
          "Partition owners[z] has the places [bounds[z], bounds[z + 1]); borrows `place`.")
      .def_property_readonly("kind", &PartitionBook::kind)
      .def_property_readonly("num_ids", &PartitionBook::num_ids)
      .def_property_readonly("num_partitions", &PartitionBook::num_partitions)
      .def("size", &PartitionBook::size, py::arg("partition"))
      .def("locate", &locate, py::arg("ids"), py::arg("pool") = nullptr, "(owners int32, local rows int64)")
      .def("local_rows", &local_rows, py::arg("ids"), py::arg("partition"), py::arg("pool") = nullptr,
           "Local rows of ids that all belong to `partition`.")
      .def("global_ids", &PartitionBook::global_ids, py::arg("partition"), py::arg("pool") = nullptr,
           py::call_guard<GilReleased>(), "Ids of `partition` in the order of its local rows.");

  py::class_<SortedIds, std::shared_ptr<SortedIds>>(m, "SortedIds", "A list of ids in order, with an index over it.")
      .def(py::init(&sorted_ids), py::arg("sorted"), py::arg("pool") = nullptr, py::arg("with_bits") = false)
      .def("find", &find, py::arg("ids"), py::arg("pool") = nullptr,
           "int64 [n]: the position of each id in the list, -1 where it is not among them.");

  py::class_<RecentIds, std::shared_ptr<RecentIds>>(
      m, "RecentIds", "Which rows were answered lately, and where they are kept (recent_ids.h).")
      .def(py::init<int64_t, int64_t, int>(), py::arg("num_ids"), py::arg("block_rows"), py::arg("num_blocks"))
      .def(
          "keep",
          [](RecentIds& self, const py::object& ids) {
            const Tensor given = from_python(ids, "ids");
            std::vector<RecentIds::Run> runs = without_gil([&] { return self.keep(given); });
            py::list out;
            for (RecentIds::Run& run : runs)
              out.append(py::make_tuple(run.block, run.first, run.is_begun, std::move(run.sources)));
            return out;
          },
          py::arg("ids"),
          "Places for those of `ids` (int64) that have none: (block, first row there, whether it begins anew, int64 "
          "[n] which of the ids), for rows one behind the other.")
      .def("forget", &RecentIds::forget, "No id has a place any more.");

  m.def("permute", &permute_array, py::arg("indices"), py::arg("n"), py::arg("key"), py::arg("inverse") = false,
        py::arg("pool") = nullptr, "Places of `indices` under a keyed bijection of [0, n), int64.");
  m.def("split_by_owner", &split, py::arg("book"), py::arg("ids"), py::arg("pool") = nullptr,
        "(ids, rows, positions, offsets), all int64, in buckets by owner, stable.");
  m.def("locate_rows", &locate_for_lookup, py::arg("book"), py::arg("ids"), py::arg("is_asked"),
        py::arg("pool") = nullptr, py::arg("copied") = nullptr, py::arg("copy_rows") = py::none(),
        py::arg("recent") = nullptr,
        "(owners int32, rows int64) of all ids, in their order, and (ids, positions, offsets) of those that are asked "
        "for, in buckets by owner: their rows are places in the owner's answer; and how many were copied, and recent. "
        "Of ids that are `copied` nobody is "
        "asked: their owner is the number of partitions, their rows are places in that list, or `copy_rows` at these. "
        "The owner of one that is `recent` is larger by 1 and its block, its row the one in that block.");
  m.def("locate_owned", &locate_owned_rows, py::arg("owners"), py::arg("ids"), py::arg("at_hand"),
        py::arg("pool") = nullptr, py::arg("copied") = nullptr, py::arg("copy_rows") = py::none(),
        "The same of ids whose owners (int32) are known. `at_hand`: the ids of each partition in the order of its "
        "rows, None for one that is asked.");
  m.def("stitch_neighbors", &stitch, py::arg("positions"), py::arg("offsets"), py::arg("parts"),
        py::arg("pool") = nullptr, py::arg("max_count") = -1,
        "(counts int64, neighbors, edge_ids or None) in the order of the ids that were split; at most `max_count` "
        "neighbors of each, -1: any number.");
  m.def("narrowed_ids", &narrow<narrowed_ids>, py::arg("values"), "int64 [n] as int32; None where not all fit.");
  m.def("narrowed_counts", &narrow<narrowed_counts>, py::arg("values"),
        "Counts int64 [n] as uint8, else as int32; None where not all fit.");
  m.def("scatter_rows", &scatter, py::arg("out"), py::arg("positions"), py::arg("rows"), py::arg("pool") = nullptr,
        "out[positions[i]] = rows[i], in place.");
}

}  // namespace gld

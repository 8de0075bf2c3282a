"""Another number of partitions of a directory, by moving zones: no table and no graph in memory is needed again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ... import _C
from ...core import available_cores, thread_pool, to_tensor
from ...data.zone_order import ZoneOrder
from ...errors import InvalidArgumentError, PartitionFormatError
from ...utils.progress import Progress, Report, told
from ...utils.system.disk import disk_errors
from ..assembly import write_order
from ..attributes import attr_path
from ..edge_book import EdgeBook, OwnedEdgesBook, default_edge_book
from ..layout import (
    EdgeKey,
    GraphArrays,
    NodeKey,
    PartitionArrays,
    PartitionLayout,
    array_path,
    load_partition_layout,
    read_meta,
)
from ..meta_entries import edge_entry, make_meta, node_entry, write_meta
from ..partition_book import PartitionBook, ZonePartitionBook, book_of_zones
from ..storage import ArrayFile, ArrayWriter, new_directory, write_array, write_tensor, written_in_place
from .edge_stream import counted, stream_of_directory
from .find_order import PASSES, Orderer, check_orderer, find_order, shape_of
from .piles import Locate, Piles
from .zone_graph import ZoneGraph, check_num_parts, read_zone_graph, write_zone_graph, zone_graph

_ROWS_AT_ONCE = 1 << 16
_KEPT_GROUPS = ("node_split", "graph_attr")
_ID_MAPS = "node_map"
_PILES = "piles"
_BESIDE = ("indptr", "edge_ids", "weights", "times", "ids", "cache_ids", "cache_x")  # arrays beside those that count

# Of some rows that follow one another: how many edges each has, and their arrays by name.
_Edges: TypeAlias = "tuple[torch.Tensor, dict[str, torch.Tensor]]"


@dataclass(frozen=True)
class Repartitioned:
    """What ``repartition`` did.

    Attributes:
        path: the new directory.
        num_zones: how many there are.
        moved_zones: how many have another owner than before; all, where partitions were not of zones.
        moved_share: their share of the bytes.
    """

    path: Path
    num_zones: int
    moved_zones: int
    moved_share: float

    def __str__(self) -> str:
        return f"moved {self.moved_zones} of {self.num_zones} zones with {self.moved_share:.1%} of the bytes"


def repartition(
    root_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    num_parts: int,
    by: Orderer | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Repartitioned:
    """Writes a partition directory of the same data set with another number of partitions.

    Zones are assigned anew by their graph; new partitions are numbered so that as many bytes as possible keep their
    number. Copies of other partitions' rows (caches) are left out. All partitions have to be on this machine. Memory is
    what the ids and the offsets of one partition's rows take, the order, and with edge features the edges' ids; rows
    that were in another order pass through files of some 64 MB beside the result.

    Args:
        root_dir: the directory, which stays as it is.
        output_dir: may exist, and have files, but no partitions.
        num_parts: number of partitions, at most that of zones.
        by: ``"kaminpar"`` or ``"ldg"``: finds the order of a data set that has none; its own is kept.
        seed: of that.
        progress: told how far the search for an order is, and the move, every half second.

    Raises:
        InvalidArgumentError: the data set has no order and ``by`` is None, or an argument is wrong.
        PartitionFormatError: the directory is damaged, or some partition is not on this machine.
        StorageError: the disk is full, or fails.
    """
    if by is not None:
        check_orderer(by)
    layout = load_partition_layout(root_dir)
    directory = new_directory(output_dir)
    with disk_errors(directory):
        directory.absolute().parent.mkdir(parents=True, exist_ok=True)
        orders, graph = _order_of(layout, directory, num_parts, by, seed, progress)
    owners = graph.owners(num_parts)
    before = _zone_owners(layout)
    if before is not None:
        owners = _renumbered(owners, num_parts, before, graph.weights[:, 0])
    with written_in_place(directory) as temporary, told(progress, "move rows", _num_rows(layout)) as report:
        write_meta(temporary, _Mover(layout, temporary, orders, owners, num_parts, report).run(graph))
    moved = torch.ones(len(owners), dtype=torch.bool) if before is None else owners != before
    num_bytes = graph.weights[:, 0]
    share = int(num_bytes[moved].sum()) / max(int(num_bytes.sum()), 1)
    return Repartitioned(directory, graph.num_zones, int(moved.sum()), share)


def _order_of(
    layout: PartitionLayout,
    directory: Path,
    num_parts: int,
    by: Orderer | None,
    seed: int,
    progress: Progress | None,
) -> tuple[Mapping[NodeKey, ZoneOrder], ZoneGraph]:
    orders = {key: info.order for key, info in layout.nodes.items() if info.order is not None}
    if len(orders) == len(layout.nodes):
        num_zones = {order.num_zones for order in orders.values()}
        if len(num_zones) != 1 or not all(order.is_permutation for order in orders.values()):
            raise PartitionFormatError(
                f"{layout.root / 'order'}: expected of each node type a permutation in as many zones, found "
                f"{sorted(num_zones)} zones"
            )
        check_num_parts(num_parts, max(num_zones))
        return orders, read_zone_graph(layout, max(num_zones)) or zone_graph(stream_of_directory(layout), orders)
    if by is None:
        raise InvalidArgumentError(
            f"root_dir: expected a data set with an order of all its nodes, got {layout.root}, which has none of "
            f"{[key for key in layout.nodes if key not in orders]}; by='kaminpar' or by='ldg' finds one"
        )
    check_num_parts(num_parts, shape_of(sum(info.count for info in layout.nodes.values()))[1])  # before the search
    passes = PASSES * sum(info.count for info in layout.edges.values())
    with told(progress, "find an order", passes) as report:
        stream = counted(stream_of_directory(layout), report)
        found = find_order(stream, by, seed=seed, scratch_dir=directory.absolute().parent)
    return found.orders, found.graph


def _num_rows(layout: PartitionLayout) -> int:
    """How many rows and edges are moved, about: rows count once for each array of their type."""
    moved = [file for file in layout.files.values() if file.path.startswith("part")]
    return sum(file.shape[0] for file in moved if file.shape and Path(file.path).stem not in _BESIDE)


def _zone_owners(layout: PartitionLayout) -> torch.Tensor | None:
    """Who has which zone, int64 ``[num_zones]``; None where partitions are not of zones."""
    books = [info.book for info in layout.nodes.values()]
    if not all(isinstance(book, ZonePartitionBook) and torch.equal(book.owners, books[0].owners) for book in books):
        return None
    first = books[0]
    assert isinstance(first, ZonePartitionBook)
    return first.owners.long()


def _renumbered(owners: torch.Tensor, num_parts: int, before: torch.Tensor, num_bytes: torch.Tensor) -> torch.Tensor:
    """New partitions by the numbers of the old ones that they share most bytes with, the largest shares first."""
    num_before = int(before.max()) + 1
    shared = torch.zeros(num_parts * num_before, dtype=torch.int64)
    shared.index_add_(0, owners * num_before + before, num_bytes)
    numbers: dict[int, int] = {}
    for pair in shared.argsort(descending=True, stable=True).tolist():
        new, old = divmod(pair, num_before)
        if old < num_parts and new not in numbers and old not in numbers.values():
            numbers[new] = old
    free = iter(sorted(set(range(num_parts)) - set(numbers.values())))
    return torch.tensor([numbers[p] if p in numbers else next(free) for p in range(num_parts)])[owners]


@dataclass(frozen=True)
class _Run:
    """Rows that follow one another in a partition, as those of a zone do."""

    owner: int
    rows: slice


def _pieces(num_rows: int) -> Iterator[slice]:
    for begin in range(0, num_rows, _ROWS_AT_ONCE):
        yield slice(begin, min(begin + _ROWS_AT_ONCE, num_rows))


def _locate(book: PartitionBook, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The partition and the row of ids; -1 where the edges of a book are not in any."""
    if not isinstance(book, OwnedEdgesBook):
        owners, rows = map(to_tensor, book.native.locate(ids))
        return owners.long(), rows.long()
    owners, rows = torch.full_like(ids, -1), torch.full_like(ids, -1)
    for p in range(book.num_partitions):
        found = to_tensor(book.sorted_ids(p).find(ids))
        owners[found >= 0], rows = p, torch.where(found >= 0, found, rows)
    return owners, rows


def _zone_runs(old: ZonePartitionBook, new: ZonePartitionBook, p: int) -> list[_Run]:
    """Where the rows of a new partition lie in the old ones, of the same zones; neighbors are joined."""
    sizes, first = old.order.bounds.diff(), torch.zeros(old.order.num_zones, dtype=torch.int64)
    for q in range(old.num_partitions):
        first[old.owners == q] = sizes[old.owners == q].cumsum(0) - sizes[old.owners == q]
    zones = ((new.owners == p) & (sizes > 0)).nonzero().view(-1)
    runs: list[_Run] = []
    for q, begin, size in zip(*(tensor[zones].tolist() for tensor in (old.owners, first, sizes)), strict=True):
        if runs and runs[-1].owner == q and runs[-1].rows.stop == begin:
            runs[-1] = _Run(q, slice(runs[-1].rows.start, begin + size))
        else:
            runs.append(_Run(q, slice(begin, begin + size)))
    return runs


def _attribute(
    select: Callable[[PartitionArrays], Mapping[str, torch.Tensor]], name: str, part: PartitionArrays
) -> torch.Tensor | None:
    return select(part).get(name)


class _Mover:
    """One run of ``repartition``."""

    def __init__(
        self,
        layout: PartitionLayout,
        root: Path,
        orders: Mapping[NodeKey, ZoneOrder],
        owners: torch.Tensor,
        num_parts: int,
        report: Report,
    ) -> None:
        self.layout, self.root, self.num_parts, self.report = layout, root, num_parts, report
        self.orders = orders
        self.books = {key: book_of_zones(orders[key], owners, num_parts) for key in layout.nodes}
        self.parts = [layout.open_partition(p, verify=None) for p in range(layout.num_parts)]
        self.files: list[ArrayFile] = []

    def _kept_zones(self, old: PartitionBook, key: NodeKey) -> tuple[ZonePartitionBook, ZonePartitionBook] | None:
        """The old and the new book where rows are of the same zones in both, each in one piece."""
        new = self.books[key]
        if isinstance(old, ZonePartitionBook) and isinstance(new, ZonePartitionBook) and old.order.is_same(new.order):
            return old, new
        return None

    def run(self, graph: ZoneGraph) -> dict[str, Any]:
        """Writes all arrays; returns what META.json will say."""
        meta = read_meta(self.layout.root)
        self._keep()
        nodes = []
        for key, info in self.layout.nodes.items():
            self.files += write_order(self.root, key, self.orders[key])  # which a book of zones has its table from
            self._move_nodes(key)
            nodes.append(node_entry(key, self.books[key], None, info.earliest, self.orders[key]))
        edges = [self._move_edges(key) for key in self.layout.edges]
        self.files += write_zone_graph(self.root, graph)
        constants, edge_dir = meta.get("constants", ()), self.layout.edge_dir
        return make_meta(self.num_parts, edge_dir, nodes, edges, self.files, constants, meta.get("tables"))

    def _keep(self) -> None:
        """Copies what does not depend on partitions."""
        for path, file in self.layout.files.items():
            if path.split("/", 1)[0] in _KEPT_GROUPS:
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.layout.root / path, self.root / path)
                self.files.append(file)
        if (self.layout.root / _ID_MAPS).exists():
            shutil.copytree(self.layout.root / _ID_MAPS, self.root / _ID_MAPS)

    def _arrays(self, select: Callable[[PartitionArrays], torch.Tensor | None]) -> dict[int, torch.Tensor]:
        """An array of all old partitions that have it."""
        selected = {part.partition_idx: select(part) for part in self.parts}
        return {p: array for p, array in selected.items() if array is not None}

    def _named_arrays(
        self, select: Callable[[PartitionArrays], Mapping[str, torch.Tensor]]
    ) -> dict[str, dict[int, torch.Tensor]]:
        """Likewise of attributes, by name."""
        names = sorted({name for part in self.parts for name in select(part)})
        return {name: self._arrays(partial(_attribute, select, name)) for name in names}

    def _write(self, path: str, some: torch.Tensor, num_rows: int, pieces: Iterable[torch.Tensor]) -> None:
        """An array of rows such as ``some`` has."""
        self.files.append(write_array(self.root, path, pieces, some.dtype, (num_rows, *some.shape[1:])))
        self.report(num_rows)

    def _rearrange(
        self, paths: list[str], arrays: Mapping[int, torch.Tensor], old: PartitionBook, sizes: list[int], new: Locate
    ) -> None:
        """Writes the rows of an array that other partitions have in another order."""
        some = next(iter(arrays.values()))
        row_bytes = some[:1].numel() * some.element_size() + 8
        piles = Piles(self.root / _PILES, sizes, row_bytes, new)
        for p, array in arrays.items():
            ids = old.local_ids(p)
            for rows in _pieces(len(ids)):
                piles.put(ids[rows], {"x": array[rows]})
        for p, path in enumerate(paths):
            taken = ((order, columns["x"] if columns else some[:0]) for order, columns in piles.take(p))
            self._write(path, some, sizes[p], (rows[order] for order, rows in taken))
        piles.close()

    def _move_nodes(self, key: NodeKey) -> None:
        info = self.layout.nodes[key]
        groups = [
            (partial(array_path, "node_feat", key, "x"), info.feature_book, lambda part: part.node_feats.get(key)),
            (partial(array_path, "node_label", key, "y"), info.book, lambda part: part.node_labels.get(key)),
            (partial(array_path, "node_time", key, "t"), info.book, lambda part: part.node_times.get(key)),
        ]
        moved = [(path, book, self._arrays(select)) for path, book, select in groups]
        for name, arrays in self._named_arrays(lambda part: part.node_attrs.get(key, {})).items():
            moved.append((partial(attr_path, "node_attr", key, name), info.book, arrays))
        sizes = self._sizes(key)
        for path_of, old, arrays in moved:
            paths = [path_of(p) for p in range(self.num_parts)]
            if not arrays:
                continue
            kept = self._kept_zones(old, key)
            if kept is None:
                self._rearrange(paths, arrays, old, sizes, partial(_locate, self.books[key]))
                continue
            for p, path in enumerate(paths):
                runs = _zone_runs(*kept, p)
                some = next(iter(arrays.values()))
                for missing in {run.owner for run in runs} - arrays.keys():
                    raise PartitionFormatError(
                        f"{self.layout.root / path_of(missing)}: expected rows as in other partitions, found no file"
                    )
                self._write(path, some, sizes[p], (arrays[run.owner][run.rows] for run in runs))

    def _sizes(self, key: NodeKey) -> list[int]:
        return [self.books[key].partition_size(p) for p in range(self.num_parts)]

    def _move_edges(self, key: EdgeKey) -> dict[str, Any]:
        """Everything about the edges of a type; its entry of META.json."""
        counts = self._move_graphs(key)
        old = self.layout.edges[key].feature_book
        has_rows = any(key in part.edge_feats or key in part.edge_attrs for part in self.parts)
        book: EdgeBook = default_edge_book(old.num_ids, counts)
        if has_rows:
            book = OwnedEdgesBook(old.num_ids, counts)
            self._move_edge_rows(key, counts)
        return edge_entry(key, counts, book)

    def _move_graphs(self, key: EdgeKey) -> list[int]:
        """Writes the rows of the new partitions; how many edges each has."""
        row_type = self.layout.row_type(key)
        graphs = {part.partition_idx: part.graphs[key] for part in self.parts}
        old, sizes = self.layout.nodes[row_type].book, self._sizes(row_type)
        if (kept := self._kept_zones(old, row_type)) is not None:
            counts = []
            for p in range(self.num_parts):
                runs = _zone_runs(*kept, p)
                counts.append(sum(int(graphs[run.owner].degrees(run.rows).sum()) for run in runs))
                self._write_graph(key, p, graphs[0], (sizes[p], counts[-1]), _of_runs(graphs, runs))
            return counts
        num_edges = sum(len(graph.indices) for graph in graphs.values())
        edge_bytes = sum(getattr(graphs[0], name).element_size() for name in _names(graphs[0]))
        row_bytes = num_edges * edge_bytes // max(sum(sizes), 1) + 16
        piles = Piles(self.root / _PILES, sizes, row_bytes, partial(_locate, self.books[row_type]))
        for p, graph in graphs.items():
            ids = old.local_ids(p)
            for rows in _pieces(len(ids)):
                degrees = graph.degrees(rows)
                piles.put_lists(ids[rows], degrees, partial(_edges_of, graph, rows.start))
        for p, count in enumerate(piles.num_items):
            self._write_graph(key, p, graphs[0], (sizes[p], count), _of_piles(graphs[0], piles.take_lists(p)))
        piles.close()
        return piles.num_items

    def _write_graph(
        self, key: EdgeKey, p: int, some: GraphArrays, sizes: tuple[int, int], pieces: Iterator[_Edges]
    ) -> None:
        """Writes so many rows of a new partition, with so many edges, from first to last."""
        num_rows, num_edges = sizes
        indptr = torch.zeros(num_rows + 1, dtype=torch.int64)
        done = 1
        with ExitStack() as stack:
            opened = {
                name: ArrayWriter(self.root, array_path("graph", key, name, p), getattr(some, name).dtype, (num_edges,))
                for name in _names(some)
            }
            writers = {name: stack.enter_context(writer) for name, writer in opened.items()}
            for degrees, arrays in pieces:
                indptr[done : done + len(degrees)] = degrees
                done += len(degrees)
                for name, writer in writers.items():
                    writer.append(arrays[name])
                self.report(len(arrays["indices"]))
            indptr.cumsum_(0)
            self.files.append(write_tensor(self.root, array_path("graph", key, "indptr", p), indptr))
            self.files += [writer.finish() for writer in writers.values()]

    def _move_edge_rows(self, key: EdgeKey, counts: list[int]) -> None:
        old, ids = self.layout.edges[key].feature_book, []
        for p in range(self.num_parts):
            path = self.root / array_path("graph", key, "edge_ids", p)
            ids.append(torch.from_numpy(np.load(path)).sort().values)
            self.files.append(write_tensor(self.root, array_path("edge_feat", key, "ids", p), ids[-1]))
        new = partial(_locate, OwnedEdgesBook(old.num_ids, counts, ids=dict(enumerate(ids))))
        groups = [(partial(array_path, "edge_feat", key, "x"), self._arrays(lambda part: part.edge_feats.get(key)))]
        for name, arrays in self._named_arrays(lambda part: part.edge_attrs.get(key, {})).items():
            groups.append((partial(attr_path, "edge_attr", key, name), arrays))
        for path_of, arrays in groups:
            if arrays:
                self._rearrange([path_of(p) for p in range(self.num_parts)], arrays, old, counts, new)


def _names(graph: GraphArrays) -> list[str]:
    """Of the arrays that have something for each edge."""
    return [name for name in ("indices", "edge_ids", "times", "weights") if getattr(graph, name) is not None]


def _of_runs(graphs: Mapping[int, GraphArrays], runs: list[_Run]) -> Iterator[_Edges]:
    for run in runs:
        graph, rows = graphs[run.owner], run.rows
        degrees = graph.degrees(rows)
        begin, end = int(graph.indptr[rows.start]), int(graph.indptr[rows.stop])
        yield degrees, {name: getattr(graph, name)[begin:end] for name in _names(graph)}


def _of_piles(
    some: GraphArrays, piles: Iterator[tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]]
) -> Iterator[_Edges]:
    for order, counts, columns in piles:
        indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        ends, ids, weights, times = map(columns.get, ("indices", "edge_ids", "weights", "times"))
        assert ends is not None and ids is not None  # noqa: PT018
        graph = _take(GraphArrays(indptr, ends, ids, weights, some.num_cols, times), order)
        yield graph.indptr.diff(), {name: getattr(graph, name) for name in _names(some)}


def _edges_of(graph: GraphArrays, first: int, positions: torch.Tensor) -> dict[str, torch.Tensor]:
    """The edges of the rows at some positions behind the first, one row behind the other."""
    taken = _take(graph, first + positions)
    return {name: getattr(taken, name) for name in _names(graph)}


def _take(graph: GraphArrays, rows: torch.Tensor) -> GraphArrays:
    """Rows of a graph, in this order."""
    pool, data = thread_pool(available_cores()), (graph.times, graph.weights)
    taken = _C.take_csr_rows(graph.indptr, graph.indices, graph.edge_ids, rows, graph.num_cols, pool, *data)
    indptr, indices, edge_ids, *rest = map(torch.utils.dlpack.from_dlpack, taken)
    times = rest.pop(0) if graph.times is not None else None
    return GraphArrays(indptr, indices, edge_ids, rest[0] if rest else None, graph.num_cols, times)

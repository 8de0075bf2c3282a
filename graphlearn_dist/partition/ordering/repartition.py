"""Another number of partitions of a directory, by moving zones: no table and no graph in memory is needed again."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import _C
from ...core import available_cores, thread_pool, to_tensor
from ...data.zone_order import ZoneOrder
from ...errors import InvalidArgumentError, PartitionFormatError
from ..assembly import write_tables
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
from ..partition_book import PartitionBook, ZonePartitionBook
from ..storage import ArrayFile, ArrayWriter, new_directory, write_tensor, written_in_place
from .edge_stream import stream_of_directory
from .find_order import Orderer, find_order
from .zone_graph import ZoneGraph, read_zone_graph, write_zone_graph, zone_graph

_ROWS_AT_ONCE = 1 << 16
_KEPT_GROUPS = ("node_split", "graph_attr")
_ID_MAPS = "node_map"


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
) -> Repartitioned:
    """Writes a partition directory of the same data set with another number of partitions.

    Zones are assigned anew by their graph; new partitions are numbered so that as many bytes as possible keep their
    number. Copies of other partitions' rows (caches) are left out. All partitions have to be on this machine; memory is
    what the offsets of one partition's rows take, and with edge features its edges' ids.

    Args:
        root_dir: the directory, which stays as it is.
        output_dir: may exist, and have files, but no partitions.
        num_parts: number of partitions, at most that of zones.
        by: ``"kaminpar"`` or ``"ldg"``: finds the order of a data set that has none; its own is kept.
        seed: of that.

    Raises:
        InvalidArgumentError: the data set has no order and ``by`` is None, or an argument is wrong.
        PartitionFormatError: the directory is damaged, or some partition is not on this machine.
    """
    layout = load_partition_layout(Path(root_dir))
    directory = new_directory(output_dir)
    directory.absolute().parent.mkdir(parents=True, exist_ok=True)
    orders, graph = _order_of(layout, directory, by, seed)
    owners = graph.owners(num_parts)
    before = _zone_owners(layout)
    if before is not None:
        owners = _renumbered(owners, num_parts, before, graph.weights[:, 0])
    with written_in_place(directory) as temporary:
        write_meta(temporary, _Mover(layout, temporary, orders, owners, num_parts).run(graph))
    moved = torch.ones(len(owners), dtype=torch.bool) if before is None else owners != before
    num_bytes = graph.weights[:, 0]
    share = int(num_bytes[moved].sum()) / max(int(num_bytes.sum()), 1)
    return Repartitioned(directory, graph.num_zones, int(moved.sum()), share)


def _order_of(
    layout: PartitionLayout, directory: Path, by: Orderer | None, seed: int
) -> tuple[Mapping[NodeKey, ZoneOrder], ZoneGraph]:
    orders = {key: info.order for key, info in layout.nodes.items() if info.order is not None}
    if len(orders) == len(layout.nodes):
        return orders, read_zone_graph(layout) or zone_graph(stream_of_directory(layout), orders)
    if by is None:
        raise InvalidArgumentError(
            f"root_dir: expected a data set with an order of all its nodes, got {layout.root}, which has none of "
            f"{[key for key in layout.nodes if key not in orders]}; by='kaminpar' or by='ldg' finds one"
        )
    found = find_order(stream_of_directory(layout), by, seed=seed, scratch_dir=directory.absolute().parent)
    return found.orders, found.graph


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


@dataclass(frozen=True)
class _Found:
    """Where some rows lie: the partition and the row of each, int64 ``[n]``."""

    owners: torch.Tensor
    rows: torch.Tensor

    def by_owner(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Each partition with the positions of its rows."""
        for p in self.owners.bincount().nonzero().view(-1).tolist():
            yield p, (self.owners == p).nonzero().view(-1)


def _pieces(ids: torch.Tensor) -> Iterator[torch.Tensor]:
    for begin in range(0, len(ids), _ROWS_AT_ONCE):
        yield ids[begin : begin + _ROWS_AT_ONCE]


def _locate(book: PartitionBook, ids: torch.Tensor) -> _Found:
    if not isinstance(book, OwnedEdgesBook):
        owners, rows = map(to_tensor, book.native.locate(ids))
        return _Found(owners.long(), rows)
    owners, rows = torch.zeros_like(ids), torch.full_like(ids, -1)
    for p in range(book.num_partitions):
        found = to_tensor(book.sorted_ids(p).find(ids))
        owners[found >= 0], rows = p, torch.where(found >= 0, found, rows)
    return _Found(owners, rows)


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


def _rows(arrays: Mapping[int, torch.Tensor], where: _Run | _Found) -> torch.Tensor:
    if isinstance(where, _Run):
        return arrays[where.owner][where.rows]
    some = next(iter(arrays.values()))
    out = torch.empty((len(where.rows), *some.shape[1:]), dtype=some.dtype)
    for p, positions in where.by_owner():
        out[positions] = arrays[p][where.rows[positions]]
    return out


def _degrees(graphs: Mapping[int, GraphArrays], where: _Run | _Found) -> torch.Tensor:
    """How many edges rows have, int64; PartitionFormatError where offsets are not in order within the edges."""
    if isinstance(where, _Run):
        graph = graphs[where.owner]
        offsets = graph.indptr[where.rows.start : where.rows.stop + 1]
        degrees, is_inside = offsets.diff(), int(offsets[0]) >= 0 and int(offsets[-1]) <= len(graph.indices)
        if not is_inside or bool((degrees < 0).any()):
            raise PartitionFormatError(
                f"part{where.owner}: expected offsets of rows {where.rows.start} to {where.rows.stop} in order and at "
                f"most {len(graph.indices)}"
            )
        return degrees
    degrees = torch.empty_like(where.rows)
    for p, positions in where.by_owner():
        indptr, rows = graphs[p].indptr, where.rows[positions]
        degrees[positions] = indptr[rows + 1] - indptr[rows]
    return degrees


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
    ) -> None:
        self.layout, self.root, self.num_parts = layout, root, num_parts
        self.books = {key: ZonePartitionBook(orders[key], owners, num_parts) for key in layout.nodes}
        self.parts = [layout.open_partition(p, verify=None) for p in range(layout.num_parts)]
        self.had_zones = {key: self._had_zones(key) for key in layout.nodes}
        self.files: list[ArrayFile] = []

    def _had_zones(self, key: NodeKey) -> bool:
        """Whether the old partitions are of the same zones."""
        old = self.layout.nodes[key].book
        return isinstance(old, ZonePartitionBook) and old.order.is_same(self.books[key].order)

    def run(self, graph: ZoneGraph) -> dict[str, Any]:
        """Writes all arrays; returns what META.json will say."""
        meta = read_meta(self.layout.root)
        self._keep()
        nodes = []
        for key, info in self.layout.nodes.items():
            self.files += write_tables(self.root, "node_book", key, self.books[key])
            for p in range(self.num_parts):
                self._move_nodes(key, p)
            nodes.append(node_entry(key, self.books[key], None, info.earliest))
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

    def _where(self, key: NodeKey, p: int, old: PartitionBook) -> Iterator[_Run | _Found]:
        """Where the rows of a new partition lie by an old book, in their order: runs, or some tens of thousands."""
        new = self.books[key]
        if isinstance(old, ZonePartitionBook) and self.had_zones[key]:
            yield from _zone_runs(old, new, p)
        else:
            yield from (_locate(old, ids) for ids in _pieces(new.local_ids(p)))

    def _arrays(self, select: Callable[[PartitionArrays], torch.Tensor | None]) -> dict[int, torch.Tensor]:
        """An array of all old partitions that have it."""
        selected = {part.partition_idx: select(part) for part in self.parts}
        return {p: array for p, array in selected.items() if array is not None}

    def _named_arrays(
        self, select: Callable[[PartitionArrays], Mapping[str, torch.Tensor]]
    ) -> dict[str, dict[int, torch.Tensor]]:
        """Likewise of attributes, by name."""
        names = sorted({name for part in self.parts for name in select(part)})
        return {name: self._arrays(functools.partial(_attribute, select, name)) for name in names}

    def _write_rows(
        self, path: str, arrays: Mapping[int, torch.Tensor], num_rows: int, found: Iterator[_Run | _Found]
    ) -> None:
        some = next(iter(arrays.values()))
        with ArrayWriter(self.root, path, some.dtype, (num_rows, *some.shape[1:])) as writer:
            for where in found:
                writer.append(_rows(arrays, where))
            self.files.append(writer.finish())

    def _move_nodes(self, key: NodeKey, p: int) -> None:
        info, num_rows = self.layout.nodes[key], self.books[key].partition_size(p)
        feats = self._arrays(lambda part: part.node_feats.get(key))
        groups = [
            (array_path("node_feat", key, "x", p), info.feature_book, feats),
            (array_path("node_label", key, "y", p), info.book, self._arrays(lambda part: part.node_labels.get(key))),
            (array_path("node_time", key, "t", p), info.book, self._arrays(lambda part: part.node_times.get(key))),
        ]
        for name, arrays in self._named_arrays(lambda part: part.node_attrs.get(key, {})).items():
            groups.append((attr_path("node_attr", key, name, p), info.book, arrays))
        for path, book, arrays in groups:
            if arrays:
                self._write_rows(path, arrays, num_rows, self._where(key, p, book))

    def _move_edges(self, key: EdgeKey) -> dict[str, Any]:
        """Everything about the edges of a type; its entry of META.json."""
        counts, ids = zip(*(self._move_graph(key, p) for p in range(self.num_parts)), strict=True)
        old = self.layout.edges[key].feature_book
        has_rows = any(key in part.edge_feats or key in part.edge_attrs for part in self.parts)
        book: EdgeBook = default_edge_book(old.num_ids, counts)
        if has_rows:
            book = OwnedEdgesBook(old.num_ids, counts)
            for p, path in enumerate(ids):
                self._move_edge_rows(key, p, path)
        return edge_entry(key, counts, book)

    def _move_graph(self, key: EdgeKey, p: int) -> tuple[int, str]:
        """Writes the rows of a new partition; how many edges they have, and where the ids of these are."""
        row_type = self.layout.row_type(key)
        graphs = {part.partition_idx: part.graphs[key] for part in self.parts}
        old, size = self.layout.nodes[row_type].book, self.books[row_type].partition_size(p)
        indptr = torch.zeros(size + 1, dtype=torch.int64)
        done = 1
        for where in self._where(row_type, p, old):
            degrees = _degrees(graphs, where)
            indptr[done : done + len(degrees)] = degrees
            done += len(degrees)
        indptr.cumsum_(0)
        self.files.append(write_tensor(self.root, array_path("graph", key, "indptr", p), indptr))
        num_edges, some = int(indptr[-1]), graphs[0]
        names = [name for name in ("indices", "edge_ids", "times", "weights") if getattr(some, name) is not None]
        paths = [array_path("graph", key, name, p) for name in names]
        writers = [
            ArrayWriter(self.root, path, getattr(some, name).dtype, (num_edges,))
            for name, path in zip(names, paths, strict=True)
        ]
        try:
            for where in self._where(row_type, p, old):
                for writer, piece in zip(writers, _edges(graphs, where, names), strict=True):
                    writer.append(piece)
            self.files += [writer.finish() for writer in writers]
        finally:
            for writer in writers:
                writer.close()
        return num_edges, paths[1]

    def _move_edge_rows(self, key: EdgeKey, p: int, ids_path: str) -> None:
        ids = torch.from_numpy(np.load(self.root / ids_path)).sort().values
        old = self.layout.edges[key].feature_book
        groups = {array_path("edge_feat", key, "x", p): self._arrays(lambda part: part.edge_feats.get(key))}
        for name, arrays in self._named_arrays(lambda part: part.edge_attrs.get(key, {})).items():
            groups[attr_path("edge_attr", key, name, p)] = arrays
        for path, arrays in groups.items():
            if arrays:
                self._write_rows(path, arrays, len(ids), (_locate(old, some.long()) for some in _pieces(ids)))
        self.files.append(write_tensor(self.root, array_path("edge_feat", key, "ids", p), ids))


def _edges(graphs: Mapping[int, GraphArrays], where: _Run | _Found, names: list[str]) -> list[torch.Tensor]:
    """The edges of rows, one array for each name."""
    if isinstance(where, _Run):
        graph, rows = graphs[where.owner], where.rows
        begin, end = int(graph.indptr[rows.start]), int(graph.indptr[rows.stop])
        return [getattr(graph, name)[begin:end] for name in names]
    taken, order = [], []
    for p, positions in where.by_owner():
        taken.append(_take(graphs[p], where.rows[positions]))
        order.append(positions)
    joined = {name: torch.cat([getattr(piece, name) for piece in taken]) for name in names}
    counts = torch.cat([piece.indptr.diff() for piece in taken])
    whole = GraphArrays(
        indptr=torch.nn.functional.pad(counts.cumsum(0), (1, 0)),
        weights=joined.get("weights"),
        times=joined.get("times"),
        num_cols=taken[0].num_cols,
        indices=joined["indices"],
        edge_ids=joined["edge_ids"],
    )
    return [getattr(_take(whole, torch.cat(order).argsort()), name) for name in names]


def _take(graph: GraphArrays, rows: torch.Tensor) -> GraphArrays:
    pool, data = thread_pool(available_cores()), (graph.times, graph.weights)
    taken = _C.take_csr_rows(graph.indptr, graph.indices, graph.edge_ids, rows, graph.num_cols, pool, *data)
    indptr, indices, edge_ids, *rest = map(torch.utils.dlpack.from_dlpack, taken)
    times = rest.pop(0) if graph.times is not None else None
    return GraphArrays(indptr, indices, edge_ids, rest[0] if rest else None, graph.num_cols, times)

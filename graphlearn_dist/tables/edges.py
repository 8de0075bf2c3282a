"""Edges of one table, to the partitions of their rows: one pass to buckets, and one from those to each file in order.

Reverse edges are made on the way. Those of the same type come after the edges themselves: the reverse of edge *i* has
the id *num_edges + i*. As the number is not known before the end, they are on the way as *-1 - i*.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ..core import to_tensor
from ..data.schema import edge_ends
from ..errors import TableError
from ..partition.attributes import attr_path
from ..partition.edge_book import default_edge_book
from ..partition.layout import AnyBook, EdgeKey, NodeKey, array_path
from ..partition.meta_entries import edge_entry
from ..partition.storage import ArrayFile, ArrayWriter
from ..utils.progress import Report
from .arrays import FeatureArray, Scales, feature_arrays, scales_by_array
from .buckets import BucketWriter, Budget, Fields, buckets_of, choose_shift
from .columns import Array, CheckedChunk, is_number, is_time
from .config import EdgeTable
from .ids import IdSpace
from .resolve import NodeNumbers, check_kinds
from .sorting import BucketSorter, joined_offsets
from .sources import Table, ahead

_INT32_END = (1 << 31) - 1
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class GraphCut:
    """What edges are cut by: counts, books and times of nodes by type, and the direction."""

    spaces: Mapping[NodeKey, IdSpace]
    books: Mapping[NodeKey, AnyBook]
    edge_dir: str
    node_times: Callable[[NodeKey], Array | None]

    def ends(self, key: EdgeKey) -> tuple[NodeKey, NodeKey]:
        """Types of rows and columns."""
        return edge_ends(key, self.edge_dir)  # type: ignore[arg-type]


class EdgeStage:
    """Everything that is done for one table of edges.

    Args:
        spec: what the config says.
        table: its rows.
        graph: the nodes.
    """

    def __init__(self, spec: EdgeTable, table: Table, graph: GraphCut) -> None:
        self.spec, self.table, self.graph = spec, table, graph
        self.arrays: list[FeatureArray] = feature_arrays(table, spec.features)
        named = zip((spec.source_column, spec.target_column), spec.ends, strict=True)
        self._ends = {column: graph.spaces[key] for column, key in named}
        check_kinds(table, self._ends, dict(zip(self._ends, (key or "the nodes" for key in spec.ends), strict=True)))
        self._has_times = {key: self._timed(key) for key in spec.keys}

    @staticmethod
    def columns_of(spec: EdgeTable) -> list[str]:
        """Columns that are read."""
        names = [spec.source_column, spec.target_column, spec.weight_column, spec.time_column]
        return [name for name in [*names, *(c for f in spec.features for c in f.columns)] if name is not None]

    @staticmethod
    def float_columns(spec: EdgeTable) -> list[str]:
        """Of them, those that hold numbers which may have fractions."""
        names = [c for f in spec.features for c in f.columns]
        return [*names, spec.weight_column] if spec.weight_column is not None else names

    def _timed(self, key: EdgeKey) -> bool:
        spec, (_, cols) = self.spec, self.graph.ends(key)
        types = self.table.types
        if spec.time_column is not None and not is_time(types[spec.time_column]):
            raise TableError(
                f"{self.table.files[0]}, column {spec.time_column!r}: expected times, found {types[spec.time_column]}"
            )
        if spec.weight_column is not None and not is_number(types[spec.weight_column]):
            found = types[spec.weight_column]
            raise TableError(f"{self.table.files[0]}, column {spec.weight_column!r}: expected numbers, found {found}")
        of_nodes = self.graph.node_times(cols) is not None
        if of_nodes and (spec.time_column is not None or spec.self_loops == "add"):
            raise TableError(
                f"{spec.label_name}: expected a time_col of the edges or of the nodes {'' if cols is None else cols}, "
                "got both, or loops that are added: a time_col of nodes gives the edges that lead to them their times. "
                "Times at which seeds are asked about are an argument of loaders (input_time)"
            )
        return of_nodes or spec.time_column is not None

    @property
    def numbers(self) -> Callable[[Path], NodeNumbers]:
        """The nodes that rows name, given the folder of what is looked up."""
        return lambda scratch: NodeNumbers(self.table, self._ends, scratch / "ends")

    # --- to buckets --------------------------------------------------------------------------------------------

    def _fields(self, key: EdgeKey, most_edges: int | None) -> Fields:
        num_cols = self.graph.spaces[self.graph.ends(key)[1]].count
        fields: list[tuple[str, Any, tuple[int, ...]]] = [
            ("col", np.int32 if num_cols < _INT32_END else np.int64, ()),
            ("eid", np.int32 if most_edges is not None and most_edges < _INT32_END else np.int64, ()),
        ]
        if self._has_times[key]:
            fields.append(("time", np.int64, ()))
        if self.spec.weight_column is not None:
            dtype = self.table.types[self.spec.weight_column]
            fields.append(("weight", dtype.to_pandas_dtype() if pa.types.is_floating(dtype) else np.float32, ()))
        return fields

    def _most_edges(self) -> int | None:
        if self.table.num_rows is None:
            return None
        most = self.table.num_rows * (2 if self.spec.is_symmetric else 1)
        return most + (self.graph.spaces[self.spec.ends[0]].count if self.spec.self_loops == "add" else 0)

    def scatter(self, scratch: Path, budget: Budget, report: Report) -> dict[str, Any]:
        """Writes buckets; returns what ``gather`` needs, in JSON's types."""
        spec, counts, most = self.spec, Counter[str](), self._most_edges()
        expected = most if most is not None else sum(row[1] for row in self.table.fingerprint()) // 8
        writers: dict[EdgeKey, BucketWriter] = {}
        shifts: dict[EdgeKey, int] = {}
        for i, key in enumerate(spec.keys):
            book, fields = self.graph.books[self.graph.ends(key)[0]], self._fields(key, most)
            shifts[key] = choose_shift(book, fields, expected, budget)
            writers[key] = BucketWriter(scratch / f"edges{i}", book, shifts[key], fields, budget)
        scales, num_edges = Scales(self.arrays), 0
        spools = _Spools(scratch / "features", self, budget)
        spools.clear()
        for source, target, ids, weights, times, raw in self._rows(counts, scratch, report):
            num_edges += len(ids)
            for i in range(len(self.arrays)):
                scales.see(i, raw[i])
            self._put(writers, spec.key, (source, target), ids, weights, times, raw, spools)
            if spec.has_reverse:
                back = -1 - ids if spec.is_symmetric else ids
                self._put(writers, spec.reverse_key, (target, source), back, weights, times, raw, spools)
        total = num_edges * (2 if spec.is_symmetric else 1)
        if spec.self_loops == "add":
            total += self._add_loops(writers[spec.key], total)
        return {
            "shifts": list(shifts.values()),
            "counts": [writer.finish() for writer in writers.values()],
            "most_edges": most,
            "num_edges": num_edges,
            "total": total,
            "scales": scales.to_list(),
            "dropped": dict(counts),
        }

    def _rows(self, counts: Counter[str], scratch: Path, report: Report) -> Iterator[tuple[Any, ...]]:
        """Sources, targets, ids, weights, times and features of the edges that are kept."""
        spec, numbers, first = self.spec, self.numbers(scratch), 0
        looked_up = set(self._ends) - set(numbers.read_columns)
        columns = [name for name in self.table.columns if name not in looked_up]
        # What was looked up is not read again, where nothing else is.
        chunks = ahead(self.table.chunks(columns)) if columns else numbers.bare_chunks()
        checked = (CheckedChunk(chunk, spec.drop, counts) for chunk in chunks)
        for chunk, found in numbers.numbers(checked):
            source, target = found[spec.source_column], found[spec.target_column]
            weights = chunk.weights(spec.weight_column) if spec.weight_column is not None else None
            times = chunk.times(spec.time_column) if spec.time_column is not None else None
            raw = [array.raw(chunk) for array in self.arrays]
            if spec.self_loops == "remove":
                chunk.leave_out(source == target)
            report(chunk.chunk.num_rows)
            source, target = chunk.kept(source), chunk.kept(target)
            ids = np.arange(first, first + len(source))
            first += len(source)
            more = [None if rows is None else chunk.kept(rows) for rows in (weights, times)]
            yield source, target, ids, *more, [chunk.kept(rows) for rows in raw]

    def _put(
        self,
        writers: Mapping[EdgeKey, BucketWriter],
        key: EdgeKey,
        ends: tuple[Array, Array],
        ids: Array,
        weights: Array | None,
        times: Array | None,
        raw: Sequence[Array],
        spools: _Spools,
    ) -> None:
        rows, cols = ends if self.graph.edge_dir == "out" else (ends[1], ends[0])
        columns = [cols, ids]
        of_nodes = self.graph.node_times(self.graph.ends(key)[1])
        if of_nodes is not None:
            columns.append(of_nodes[cols])
        elif times is not None:
            columns.append(times)
        if weights is not None:
            columns.append(weights)
        writers[key].put(rows, columns)
        if self.arrays:
            spools.put(self.spec.keys.index(key), rows, ids, raw)

    def _add_loops(self, writer: BucketWriter, first: int) -> int:
        count = self.graph.spaces[self.spec.ends[0]].count
        for begin in range(0, count, _AT_ONCE):
            nodes = np.arange(begin, min(begin + _AT_ONCE, count))
            weights = [np.ones(len(nodes), np.float32)] if self.spec.weight_column is not None else []
            writer.put(nodes, [nodes, first + nodes, *weights])
        return count

    # --- from buckets ------------------------------------------------------------------------------------------

    def gather(
        self, number: int, done: Mapping[str, Any], scratch: Path, root: Path, budget: Budget, report: Report
    ) -> tuple[dict[str, Any], list[ArrayFile]]:
        """Writes the graph and the features of ``spec.keys[number]``; its entry of META.json, and the files."""
        key = self.spec.keys[number]
        rows, cols = self.graph.ends(key)
        book, fields = self.graph.books[rows], self._fields(key, done["most_edges"])
        names = [name for name, _, _ in fields if name in ("time", "weight")]
        sorter = BucketSorter(self.graph.spaces[cols].count, names, done["num_edges"], budget)
        files, part_counts = [], []
        for p in range(book.num_partitions):
            buckets = buckets_of(
                scratch / f"edges{number}", book, p, done["shifts"][number], fields, done["counts"][number]
            )
            part_counts.append(sum(bucket.count for bucket in buckets))
            sizes = (book.partition_size(p), part_counts[-1], done["total"])
            files += self._write_graph(root, key, p, sizes, fields, joined_offsets(sorter.sort(buckets)), report)
        owns = default_edge_book(done["total"], part_counts)
        if self.arrays:
            files += _Spools(scratch / "features", self, budget).write(number, done, root, part_counts)
        return edge_entry(key, part_counts, owns), files

    def _write_graph(
        self,
        root: Path,
        key: EdgeKey,
        partition: int,
        sizes: tuple[int, int, int],
        fields: Fields,
        pieces: Iterator[tuple[torch.Tensor, Mapping[str, torch.Tensor]]],
        report: Report,
    ) -> list[ArrayFile]:
        num_rows, num_edges, total = sizes
        of = dict((name, torch.from_numpy(np.empty(0, dtype)).dtype) for name, dtype, _ in fields)
        dtypes = {"indices": of["col"], "edge_ids": torch.int32 if total < _INT32_END else torch.int64}
        dtypes |= {name: of[name[:-1]] for name in ("times", "weights") if name[:-1] in of}

        def opened(name: str, dtype: torch.dtype, count: int) -> ArrayWriter:
            return ArrayWriter(root, array_path("graph", key, name, partition), dtype, (count,))

        with ExitStack() as stack:
            offsets = stack.enter_context(opened("indptr", torch.int64, num_rows + 1))
            writers = {name: stack.enter_context(opened(name, dt, num_edges)) for name, dt in dtypes.items()}
            offsets.append(torch.zeros(1, dtype=torch.int64))
            for ends, arrays in pieces:
                offsets.append(ends)
                for name, tensor in arrays.items():
                    writers[name].append(tensor.to(dtypes[name]))
                report(len(arrays["indices"]) if arrays else 0)
            return [offsets.finish(), *(writer.finish() for writer in writers.values())]

    def describe(self, done: Mapping[str, Any]) -> dict[str, Any]:
        """What META.json says of the columns."""
        spec, scales = self.spec, scales_by_array(self.arrays, done["scales"])
        found: dict[str, Any] = {
            "features": [array.describe(scale) for array, scale in zip(self.arrays, scales, strict=True)]
        }
        for name, column in (("weight", spec.weight_column), ("time", spec.time_column)):
            if column is not None:
                found[name] = {"column": column, "type": str(self.table.types[column])}
        return found


class _Spools:
    """Features of edges, appended by partition in the order of the edges, which is the order they are stored in.

    Those of reverse edges of the same type come after all others, and wait in files of their own.
    """

    def __init__(self, folder: Path, stage: EdgeStage, budget: Budget) -> None:
        self._folder, self._stage, self._budget = folder, stage, budget

    def clear(self) -> None:
        """Empties the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def _append(self, name: str, rows: Array) -> None:
        with open(self._folder / name, "ab") as file:  # no file stays open: there may be many partitions
            file.write(np.ascontiguousarray(rows).data)

    def put(self, number: int, rows: Array, ids: Array, raw: Sequence[Array]) -> None:
        """Appends the features of edges whose rows these nodes are; ids below 0: reverse ones."""
        key = self._stage.spec.keys[number]
        book = self._stage.graph.books[self._stage.graph.ends(key)[0]]
        owners = to_tensor(book.native.locate(torch.from_numpy(rows))[0]).numpy()
        turn = "b" if len(ids) and ids[0] < 0 else "a"
        for p in range(book.num_partitions):
            mine = owners == p
            self._append(f"{number}.{p}.{turn}.ids", ids[mine])
            for i, values in enumerate(raw):
                self._append(f"{number}.{p}.{turn}.{i}", values[mine])

    def write(self, number: int, done: Mapping[str, Any], root: Path, part_counts: Sequence[int]) -> list[ArrayFile]:
        """Writes the arrays of one edge type, and the ids beside them."""
        key, arrays = self._stage.spec.keys[number], self._stage.arrays
        scales, files = scales_by_array(arrays, done["scales"]), []
        for p, count in enumerate(part_counts):
            for i, array in enumerate(arrays):
                path = (
                    array_path("edge_feat", key, "x", p)
                    if array.is_main
                    else attr_path("edge_attr", key, array.spec.name, p)
                )
                with ArrayWriter(root, path, array.stored_dtype, (count, array.width)) as writer:
                    for raw in self._read(f"{number}.{p}", str(i), array.raw_dtype, array.width):
                        writer.append(array.store(raw.reshape(-1, array.width), scales[i]))
                    files.append(writer.finish())
            if len(part_counts) > 1:
                dtype = torch.int32 if done["total"] < _INT32_END else torch.int64
                with ArrayWriter(root, array_path("edge_feat", key, "ids", p), dtype, (count,)) as writer:
                    for ids in self._read(f"{number}.{p}", "ids", np.int64, 1):
                        ids = np.where(ids < 0, done["num_edges"] - 1 - ids, ids)
                        writer.append(torch.from_numpy(ids).to(dtype))
                    files.append(writer.finish())
        return files

    def _read(self, prefix: str, name: str, dtype: Any, width: int) -> Iterator[Array]:
        at_once = max(self._budget.chunk_bytes // (np.dtype(dtype).itemsize * max(width, 1)), 1) * width
        for turn in "ab":
            path = self._folder / f"{prefix}.{turn}.{name}"
            if not path.exists():
                continue
            with open(path, "rb") as file:
                while len(values := np.fromfile(file, dtype, at_once)):
                    yield values

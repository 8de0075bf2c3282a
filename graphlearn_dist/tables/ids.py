"""From the ids of tables to those of the graph: the place of each in the sorted list of its type's ids.

Integers that are already [0, n) are their own place, and need no list.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from .. import _C
from ..core import to_tensor
from ..errors import InvalidArgumentError, StorageError, TableError, UnknownIdError
from ..partition.layout import NodeKey, array_path
from .buckets import Budget
from .columns import Array, CheckedChunk, Ids, as_ids, id_kind, native_ids, one_array
from .extra import open_duckdb
from .sources import Place, table_errors

_MAP_GROUP = 1 << 18  # rows that are read to give one id back
_SPARSE = 4  # integers that spread over at most so many numbers each are sorted by marking them


@dataclass(frozen=True)
class IdSpace:
    """The ids of one node type.

    Attributes:
        count: number of nodes.
        kind: ``"dense"`` (a node's id is its number), ``"int"`` or ``"text"``.
        arrow_type: of the ids in the tables.
        map_path: of the sorted Parquet file in the partition directory; None if dense.
    """

    count: int
    kind: str
    arrow_type: str = "int64"
    map_path: str | None = None


def map_path(key: NodeKey) -> str:
    """Where the ids of a node type lie in a partition directory."""
    return array_path("node_map", key, "ids").removesuffix(".npy") + ".parquet"


@dataclass(frozen=True)
class IdRows:
    """Ids of some rows, after drops: ``positions`` are their numbers among the rows of the whole table."""

    ids: Ids
    positions: Array
    place: Place
    kept: Array | None


class NodeIds:
    """Makes the id space of a node type from the ids in its table, which are distinct, or may be so many times.

    Args:
        name: of the type, for messages.
        column: of the ids.
        rows: makes an iterator over them, anew each time.
        arrow_type: of the column.
        distinct: whether an id may come once only; ``drop`` says whether to leave others out, or to raise.
    """

    def __init__(
        self,
        name: str,
        column: str,
        rows: Callable[[], Iterator[IdRows]],
        arrow_type: Any,
        *,
        distinct: bool,
        drop_doubles: bool = False,
        counts: Counter[str] | None = None,
    ) -> None:
        self._name, self._column, self._rows, self._type = name, column, rows, arrow_type
        self._distinct, self._drop, self._counts = distinct, drop_doubles, counts

    def make(self, root: Path, key: NodeKey, scratch: Path, budget: Budget) -> IdSpace:
        """Reads all ids, and writes their map where they are not dense."""
        kind = id_kind(self._type)
        if kind == "int":
            space = self._by_marks(root, key)
            if space is not None:
                return space
        path = root / map_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        count = self._by_sorting(path, scratch, budget)
        return IdSpace(count, str(kind), str(self._type), map_path(key))

    # --- integers near each other ------------------------------------------------------------------------------

    def _by_marks(self, root: Path, key: NodeKey) -> IdSpace | None:
        """The space of integers of a small range; None where they spread too far."""
        least, greatest, count, in_order = 0, -1, 0, True
        for rows in self._rows():
            ids = rows.ids
            if not len(ids):
                continue
            in_order = in_order and ids[0] == count and bool((np.diff(ids) == 1).all())
            least, greatest, count = min(least, int(ids.min())), max(greatest, int(ids.max())), count + len(ids)
        if in_order:
            return IdSpace(count, "dense", str(self._type))
        if least < 0 or greatest >= _SPARSE * count:
            return None
        seen = np.zeros(greatest + 1, np.bool_)
        for rows in self._rows():
            if self._distinct:
                self._find_doubles(rows, seen)
            seen[rows.ids] = True
        distinct = int(np.count_nonzero(seen))
        if distinct == greatest + 1:
            return IdSpace(distinct, "dense", str(self._type))
        path = root / map_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        pieces = (
            pa.array(np.flatnonzero(seen[first : first + _MAP_GROUP]) + first)
            for first in range(0, len(seen), _MAP_GROUP)
        )
        _write_map(path, pa.int64(), pieces)
        return IdSpace(distinct, "int", str(self._type), map_path(key))

    def _find_doubles(self, rows: IdRows, seen: Array) -> None:
        again = seen[rows.ids]
        _, first = np.unique(rows.ids, return_index=True)
        if len(first) < len(rows.ids):
            is_first = np.zeros(len(rows.ids), np.bool_)
            is_first[first] = True
            again |= ~is_first
        self._on_doubles(again, rows)

    def _on_doubles(self, again: Array, rows: IdRows) -> None:
        if not again.any():
            return
        if not self._drop:
            at = int(again.argmax())
            row = at if rows.kept is None else int(np.flatnonzero(rows.kept)[at])
            raise self._double(rows.ids[at], rows.place.of(row, self._column))
        if self._counts is not None:
            self._counts["double_ids"] += int(again.sum())

    def _double(self, value: Any, place: str) -> TableError:
        return TableError(f"{place}: expected each id once, got {value!r} again ({self._name})")

    # --- any others --------------------------------------------------------------------------------------------

    def _by_sorting(self, path: Path, scratch: Path, budget: Budget) -> int:
        """Sorts ids on disk, by DuckDB, and writes the distinct ones; returns how many."""
        starts: list[tuple[int, Place, Array | None]] = []
        failed: list[BaseException] = []
        is_text = id_kind(self._type) == "text"
        dtype = pa.large_string() if is_text else pa.int64()
        schema = pa.schema([("id", dtype), ("position", pa.int64())])

        def batches() -> Iterator[Any]:
            try:
                for rows in self._rows():
                    starts.append((int(rows.positions[0]) if len(rows.positions) else 0, rows.place, rows.kept))
                    ids = rows.ids if is_text else pa.array(rows.ids)
                    yield pa.record_batch([ids, pa.array(rows.positions)], schema=schema)
            except BaseException as error:  # what passes through DuckDB loses its type
                failed.append(error)
                raise

        scratch.mkdir(parents=True, exist_ok=True)
        query = (
            "SELECT id, position FROM given ORDER BY id, position"
            if self._distinct
            else "SELECT id, 0 AS position FROM (SELECT DISTINCT id FROM given) ORDER BY id"
        )
        connection = open_duckdb(max(budget.working_bytes // 2, 32 << 20), scratch, budget.threads)
        try:
            connection.register("given", pa.RecordBatchReader.from_batches(schema, batches()))
            ordered = connection.sql(query).to_arrow_reader(_MAP_GROUP)
            return _write_map(path, dtype, self._without_doubles(ordered, starts))
        except Exception as error:
            if failed:
                raise failed[0] from None
            if type(error).__module__.split(".")[0] in ("duckdb", "_duckdb"):
                raise StorageError(f"{self._name}: ids cannot be sorted: {str(error).splitlines()[0]:.500}") from error
            raise
        finally:
            connection.close()

    def _without_doubles(self, ordered: Any, starts: list[tuple[int, Place, Array | None]]) -> Iterator[Any]:
        last = None
        for batch in ordered:
            ids = batch.column(0)
            if not len(ids):
                continue
            again = np.zeros(len(ids), np.bool_)
            again[1:] = pc.equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
            again[0] = last is not None and ids[0] == last
            last = ids[-1]
            if again.any():
                if not self._drop:
                    at = int(again.argmax())
                    raise self._double(ids[at].as_py(), self._place_of(int(batch.column(1)[at].as_py()), starts))
                if self._counts is not None:
                    self._counts["double_ids"] += int(again.sum())
                ids = ids.filter(pa.array(~again))
            yield ids

    def _place_of(self, position: int, starts: list[tuple[int, Place, Array | None]]) -> str:
        first, place, kept = starts[bisect.bisect_right(starts, position, key=lambda start: start[0]) - 1]
        row = position - first
        return place.of(row if kept is None else int(np.flatnonzero(kept)[row]), self._column)


def id_rows(chunks: Iterable[CheckedChunk], column: str) -> Iterator[IdRows]:
    """The ids of checked chunks that are kept, numbered through them."""
    position = 0
    for chunk in chunks:
        ids = chunk.kept(chunk.ids(column))
        yield IdRows(ids, np.arange(position, position + len(ids)), chunk.chunk.place, chunk.keep)
        position += len(ids)


def _write_map(path: Path, dtype: Any, pieces: Iterable[Any]) -> int:
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(path, pa.schema([("id", dtype)]), compression="zstd") as writer:
        for ids in pieces:
            writer.write_table(pa.table({"id": ids.cast(dtype)}), row_group_size=_MAP_GROUP)
            count += len(ids)
    return count


# --- looking ids up --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MapPart:
    """Some row groups of a map, whose ids fit into memory together; ``first``: the number of the first of them."""

    groups: tuple[int, ...]
    first: int


def map_parts(root: Path, space: IdSpace, budget: Budget) -> list[MapPart]:
    """A map in parts, each of which fits into half of the memory."""
    import pyarrow.parquet as pq

    path = root / str(space.map_path)
    with table_errors(str(path)):
        meta = pq.read_metadata(path)
    parts: list[MapPart] = []
    groups: list[int] = []
    taken = first = rows = 0
    for number in range(meta.num_row_groups):
        group = meta.row_group(number)
        need = _table_bytes(group)
        if groups and taken + need > budget.working_bytes // 2:
            parts.append(MapPart(tuple(groups), first))
            first, groups, taken = rows, [], 0
        groups.append(number)
        taken, rows = taken + need, rows + group.num_rows
    return [*parts, MapPart(tuple(groups), first)]


def open_part(root: Path, space: IdSpace, part: MapPart) -> Any:
    """The ``_C.IdTable`` of a part of a map."""
    import pyarrow.parquet as pq

    path = root / str(space.map_path)
    with table_errors(str(path)):
        ids = pq.ParquetFile(path, memory_map=True).read_row_groups(list(part.groups), use_threads=False).column("id")
    return _C.IdTable(native_ids(as_ids(one_array(ids), TableError)))


def _table_bytes(group: Any) -> int:
    """Memory of a row group's ids in a table, at most: their column, and the table, while that is made of it."""
    return int(group.column(0).total_uncompressed_size * 2 + group.num_rows * 40)


class IdMap:
    """The ids that nodes have in the tables they came from, of one type of a partition directory.

    Args:
        directory: of the partitions.
        node_type: the type; None for a homogeneous graph.
    """

    def __init__(self, directory: str | Path, node_type: NodeKey = None) -> None:
        import pyarrow.parquet as pq

        path = Path(directory) / map_path(node_type)
        self._dense = not path.exists()
        if self._dense:
            _check_has_type(Path(directory), node_type)
            return
        with table_errors(str(path)):
            self._file = pq.ParquetFile(path, memory_map=True)
        meta = self._file.metadata
        rows = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        self._group: tuple[int, Any] = (-1, None)

    def original_ids(self, node_ids: torch.Tensor) -> Any:
        """The original ids of nodes (int ``[n]``) in that order, as an Arrow array; of dense ids the numbers.

        Raises:
            UnknownIdError: a node id lies outside the type.
        """
        wanted = node_ids.detach().cpu().long().numpy()
        if self._dense:
            return pa.array(wanted)
        total = int(self._starts[-1])
        if len(wanted) and (int(wanted.min()) < 0 or int(wanted.max()) >= total):
            raise UnknownIdError(f"node_ids: expected 0 <= id < {total}, got {wanted.min()} to {wanted.max()}")
        order = np.argsort(wanted, kind="stable")
        groups = np.searchsorted(self._starts, wanted[order], side="right") - 1
        found = []
        for group in np.unique(groups):
            inside = wanted[order][groups == group] - self._starts[group]
            found.append(self._read(int(group)).take(pa.array(inside)))
        if not found:
            return pa.array([], self._file.schema_arrow.field("id").type)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return pa.concat_arrays(found).take(pa.array(back))

    def node_ids(self, original_ids: Any) -> torch.Tensor:
        """The node ids int64 ``[n]`` of original ones (a sequence, or an Arrow array).

        Raises:
            UnknownIdError: no node has such an id.
        """
        given = original_ids if isinstance(original_ids, pa.Array) else pa.array(original_ids)
        if self._dense:
            return torch.from_numpy(np.array(given.cast(pa.int64()).to_numpy(zero_copy_only=False)))
        dtype = self._file.schema_arrow.field("id").type
        if len(given) and id_kind(given.type) != id_kind(dtype):
            raise InvalidArgumentError(f"original_ids: expected {dtype}, got {given.type}")
        asked, out = native_ids(as_ids(given.cast(dtype), TableError)), np.full(len(given), -1, np.int64)
        for group in range(len(self._starts) - 1):
            table = _C.IdTable(native_ids(as_ids(self._read(group), TableError)))
            found = to_tensor(table.find(asked)).numpy()
            out = np.where(found >= 0, found + self._starts[group], out)
        if (out < 0).any():
            at = int((out < 0).argmax())
            raise UnknownIdError(f"original_ids[{at}]: no node has the id {given[at].as_py()!r}")
        return torch.from_numpy(out)

    def _read(self, group: int) -> Any:
        if self._group[0] != group:
            self._group = (group, one_array(self._file.read_row_group(group, use_threads=False).column("id")))
        return self._group[1]


def _check_has_type(directory: Path, node_type: NodeKey) -> None:
    from ..partition import load_partition_layout

    nodes = load_partition_layout(directory, verify=False).nodes
    if node_type not in nodes:
        raise InvalidArgumentError(f"node_type: expected one of {list(nodes)}, got {node_type!r}")

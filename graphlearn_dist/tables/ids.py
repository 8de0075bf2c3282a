"""From the ids of tables to those of the graph: the place of each in the sorted list of its type's ids.

Integers that are already [0, n) are their own place, and need no list.
"""

from __future__ import annotations

import bisect
import os
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
from ..partition.layout import NodeKey, array_path, load_partition_layout
from ..utils.paths import to_path
from .buckets import Budget
from .columns import Array, CheckedChunk, Ids, as_ids, id_kind, native_ids, one_array
from .extra import open_duckdb
from .sources import ChunkPlace, table_errors

# What is read to give one id back: so many rows, fewer where their texts are longer than so many bytes.
_MAP_GROUP, _MAP_GROUP_BYTES = 1 << 18, 16 << 20
_SORTED_ROWS = 1 << 13  # that DuckDB hands over at once
_LONG_TEXT = 200  # bytes; from here on sorting by several threads takes memory in proportion
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
    place: ChunkPlace
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
        scratch.mkdir(parents=True, exist_ok=True)
        path, kind, name = scratch / "ids.parquet", id_kind(self._type), str(self._type)
        found = self._by_marks(path, budget) if kind == "int" else None
        if found is None:
            found = self._by_sorting(path, scratch, budget)
        if kind == "int" and found.is_dense:
            return IdSpace(found.count, "dense", name)
        place = root / map_path(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)
        return IdSpace(found.count, str(kind), name, map_path(key))

    # --- integers near each other ------------------------------------------------------------------------------

    def _by_marks(self, path: Path, budget: Budget) -> _Map | None:
        """The map of integers of a small range; None where they spread too far."""
        least, greatest, count, in_order = 0, -1, 0, True
        for rows in self._rows():
            ids = rows.ids
            if not len(ids):
                continue
            in_order = in_order and ids[0] == count and bool((np.diff(ids) == 1).all())
            least, greatest, count = min(least, int(ids.min())), max(greatest, int(ids.max())), count + len(ids)
        if in_order:
            return _Map(count, is_dense=True)
        if least < 0 or greatest >= min(_SPARSE * count, budget.working_bytes // 2):
            return None
        seen = np.zeros(greatest + 1, np.bool_)
        for rows in self._rows():
            if self._distinct:
                self._on_doubles(find_again(rows.ids, seen), rows)
            else:
                seen[rows.ids] = True
        if seen.all():
            return _Map(len(seen), is_dense=True)
        pieces = (
            pa.array(np.flatnonzero(seen[first : first + _MAP_GROUP]) + first)
            for first in range(0, len(seen), _MAP_GROUP)
        )
        return _write_map(path, pa.int64(), pieces)

    def _on_doubles(self, again: Array, rows: IdRows) -> None:
        if not again.any():
            return
        if not self._drop:
            at = int(again.argmax())
            row = at if rows.kept is None else int(np.flatnonzero(rows.kept)[at])
            raise self._double(int(rows.ids[at]), rows.place.of(row, self._column))
        if self._counts is not None:
            self._counts["double_ids"] += int(again.sum())

    def _double(self, value: Any, place: str) -> TableError:
        return TableError(f"{place}: expected each id once, got {value!r} again ({self._name})")

    # --- any others --------------------------------------------------------------------------------------------

    def _by_sorting(self, path: Path, scratch: Path, budget: Budget) -> _Map:
        """Sorts ids on disk, by DuckDB, and writes the distinct ones."""
        starts: list[tuple[int, ChunkPlace, Array | None]] = []
        failed: list[BaseException] = []
        length = self._mean_length()
        is_text = id_kind(self._type) == "text"
        dtype = pa.large_string() if is_text else pa.int64()
        schema = pa.schema([("id", dtype), ("position", pa.int64())])

        def batches() -> Iterator[Any]:
            try:
                for rows in self._rows():
                    if not len(rows.positions):
                        continue
                    starts.append((int(rows.positions[0]), rows.place, rows.kept))
                    ids = rows.ids if is_text else pa.array(rows.ids)
                    yield pa.record_batch([ids, pa.array(rows.positions)], schema=schema)
            except BaseException as error:  # what passes through DuckDB loses its type
                failed.append(error)
                raise

        query = (
            "SELECT id, position FROM given ORDER BY id, position"
            if self._distinct
            else "SELECT id, 0 AS position FROM (SELECT DISTINCT id FROM given) ORDER BY id"
        )
        memory, threads = max(budget.working_bytes // 2, 32 << 20), budget.threads if length < _LONG_TEXT else 1
        connection = open_duckdb(memory, scratch, threads)
        try:
            connection.register("given", pa.RecordBatchReader.from_batches(schema, batches()))
            ordered = connection.sql(query).to_arrow_reader(_SORTED_ROWS)
            return _write_map(path, dtype, self._without_doubles(ordered, starts))
        except Exception as error:
            if failed:
                raise failed[0] from None
            if type(error).__module__.split(".")[0] in ("duckdb", "_duckdb"):
                said = f"{self._name}: ids cannot be sorted: {str(error).splitlines()[0]:.500}"
                if type(error).__name__ == "OutOfMemoryException":
                    said += f"; texts of {length:,.0f} bytes need more --memory"
                raise StorageError(said) from error
            raise
        finally:
            connection.close()

    def _mean_length(self) -> float:
        """Bytes of a text, about: of the first rows; 0 of integers."""
        for rows in self._rows():
            if len(rows.ids):
                return 0.0 if isinstance(rows.ids, np.ndarray) else rows.ids.nbytes / len(rows.ids)
        return 0.0

    def _without_doubles(self, ordered: Any, starts: list[tuple[int, ChunkPlace, Array | None]]) -> Iterator[Any]:
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

    def _place_of(self, position: int, starts: list[tuple[int, ChunkPlace, Array | None]]) -> str:
        first, place, kept = starts[bisect.bisect_right(starts, position, key=lambda start: start[0]) - 1]
        row = position - first
        return place.of(row if kept is None else int(np.flatnonzero(kept)[row]), self._column)


def find_again(ids: Array, seen: Array) -> Array:
    """bool ``[n]``: which of ``ids`` (int ``[n]``) came before, among them or in ``seen`` (by id), which gets all."""
    again = np.ones(len(ids), np.bool_)
    again[np.unique(ids, return_index=True)[1]] = False
    again |= seen[ids]
    seen[ids] = True
    return again


def id_rows(chunks: Iterable[CheckedChunk], column: str) -> Iterator[IdRows]:
    """The ids of checked chunks that are kept, numbered through them."""
    position = 0
    for chunk in chunks:
        ids = chunk.kept(chunk.ids(column))
        yield IdRows(ids, np.arange(position, position + len(ids)), chunk.chunk.place, chunk.keep)
        position += len(ids)


@dataclass(frozen=True)
class _Map:
    """What ``_write_map`` wrote. ``is_dense``: the ids are 0 to ``count - 1``, and the file is of no use."""

    count: int
    is_dense: bool


def _write_map(path: Path, dtype: Any, pieces: Iterable[Any]) -> _Map:
    """Writes ascending ids. The bytes are the same however they are divided into pieces."""
    import pyarrow.parquet as pq

    count = 0
    ends: list[Any] = []
    with pq.ParquetWriter(path, pa.schema([("id", dtype)]), compression="zstd", use_dictionary=False) as writer:
        for ids in _in_groups(pieces, dtype):
            writer.write_table(pa.table({"id": ids}), row_group_size=len(ids))
            count += len(ids)
            ends = [*ends[:1], ids[0].as_py(), ids[-1].as_py()]
    return _Map(count, is_dense=[*ends[:1], *ends[-1:]] == ([0, count - 1] if count else []))


def _in_groups(pieces: Iterable[Any], dtype: Any) -> Iterator[Any]:
    """The same ids, each time as many as a row group has: a rule that does not know how they are divided."""
    held: list[Any] = []
    rows = size = 0
    for piece in pieces:
        ids = piece.cast(dtype)
        while len(ids):
            count, taken = _that_fit(ids, _MAP_GROUP - rows, _MAP_GROUP_BYTES - size)
            if not count and rows == 0:
                count, taken = 1, _MAP_GROUP_BYTES  # a text that is longer is alone
            held.append(ids[:count])
            ids, rows, size = ids[count:], rows + count, size + taken
            if len(ids) or rows == _MAP_GROUP:
                yield pa.concat_arrays(held)
                held, rows, size = [], 0, 0
    if rows:
        yield pa.concat_arrays(held)


def _that_fit(ids: Any, most_rows: int, most_bytes: int) -> tuple[int, int]:
    """How many of the first ids fit into so many rows and bytes of text, and the bytes."""
    if not pa.types.is_large_string(ids.type):
        return min(len(ids), most_rows), 0
    offsets = np.frombuffer(ids.buffers()[1], np.int64)[ids.offset : ids.offset + len(ids) + 1]
    ends = offsets[1:] - offsets[0]
    count = min(int(np.searchsorted(ends, most_bytes, side="right")), most_rows)
    return count, int(ends[count - 1]) if count else 0


# --- looking ids up --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MapPart:
    """Some row groups of a map, whose ids fit into memory together; ``first``: the number of the first of them."""

    groups: tuple[int, ...]
    first: int


def map_parts(root: Path, space: IdSpace, budget: Budget) -> list[MapPart]:
    """A map in parts, each of which is looked up in memory."""
    import pyarrow.parquet as pq

    path = root / str(space.map_path)
    with table_errors(str(path)):
        meta = pq.read_metadata(path)
    parts: list[MapPart] = []
    groups: list[int] = []
    taken = first = rows = 0
    is_text = space.kind == "text"
    for number in range(meta.num_row_groups):
        group = meta.row_group(number)
        # Slots of 12 and heads of 5 bytes beside texts, which have a length of 4 bytes in the file; slots of 24.
        need = group.column(0).total_uncompressed_size + group.num_rows * 13 if is_text else group.num_rows * 24
        if groups and taken + need > budget.table_bytes:
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
        file = pq.ParquetFile(path, memory_map=True)
        groups = [file.metadata.row_group(number) for number in part.groups]
        text_bytes = sum(group.column(0).total_uncompressed_size for group in groups)  # with a length before each
        table = _C.IdTable(
            max_ids=sum(group.num_rows for group in groups), text_bytes=text_bytes if space.kind == "text" else -1
        )
        for number in part.groups:
            ids = file.read_row_group(number, use_threads=False).column("id")
            table.add(native_ids(as_ids(one_array(ids), _as_read)))
    return table


def _as_read(text: str, row: int) -> TableError:
    return TableError(f"map of ids, row {row}: {text}")


class IdMap:
    """The ids that nodes have in the tables they came from, of one type of a partition directory.

    Args:
        directory: of the partitions.
        node_type: the type; None for a homogeneous graph.
    """

    def __init__(self, directory: str | Path, node_type: NodeKey = None) -> None:
        import pyarrow.parquet as pq

        root = to_path("directory", directory)
        layout = load_partition_layout(root, verify=False)
        if node_type not in layout.nodes:
            raise InvalidArgumentError(f"node_type: expected one of {list(layout.nodes)}, got {node_type!r}")
        self._num_nodes = layout.nodes[node_type].count
        self._dense = layout.columns.get("nodes", {}).get(node_type, {}).get("id_map") is None
        if self._dense:
            return
        self._path = root / map_path(node_type)
        with table_errors(str(self._path)):
            self._file = pq.ParquetFile(self._path, memory_map=True)
        meta = self._file.metadata
        rows = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        self._group: tuple[int, Any] = (-1, None)

    @property
    def num_nodes(self) -> int:
        """How many nodes of the type there are."""
        return self._num_nodes

    @property
    def id_type(self) -> Any:
        """Arrow's type of the original ids."""
        return pa.int64() if self._dense else self._file.schema_arrow.field("id").type

    def original_ids(self, node_ids: torch.Tensor) -> Any:
        """The original ids of nodes (int ``[n]``) in that order, as an Arrow array; of dense ids the numbers.

        Raises:
            UnknownIdError: a node id lies outside the type.
        """
        wanted = node_ids.detach().cpu().long().numpy()
        total = self._num_nodes
        if len(wanted) and (int(wanted.min()) < 0 or int(wanted.max()) >= total):
            raise UnknownIdError(f"node_ids: expected 0 <= id < {total}, got {wanted.min()} to {wanted.max()}")
        if self._dense:
            return pa.array(wanted)
        order = np.argsort(wanted, kind="stable")
        groups = np.searchsorted(self._starts, wanted[order], side="right") - 1
        found = []
        for group in np.unique(groups):
            inside = wanted[order][groups == group] - self._starts[group]
            found.append(self._read(int(group)).take(pa.array(inside)))
        if not found:
            return pa.array([], self.id_type)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return pa.concat_arrays(found).take(pa.array(back))

    def node_ids(self, original_ids: Any) -> torch.Tensor:
        """The node ids int64 ``[n]`` of original ones (a sequence, or an Arrow array, chunked or not).

        Raises:
            UnknownIdError: no node has such an id.
        """
        dtype = self.id_type
        if isinstance(original_ids, pa.ChunkedArray):
            original_ids = original_ids.combine_chunks()
        if isinstance(original_ids, pa.DictionaryArray):
            original_ids = original_ids.dictionary_decode()
        try:
            given = original_ids if isinstance(original_ids, pa.Array) else pa.array(original_ids)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise InvalidArgumentError(f"original_ids: expected ids as {dtype}: {error}") from error
        if len(given) and id_kind(given.type) != id_kind(dtype):
            raise InvalidArgumentError(f"original_ids: expected {dtype}, got {given.type}")
        if not len(given):
            return torch.empty(0, dtype=torch.int64)
        asked = as_ids(given, lambda text, at: UnknownIdError(f"original_ids[{at}]: {text}"))
        out = self._positions(asked)
        out[~given.is_valid().to_numpy(zero_copy_only=False)] = -1
        if (out < 0).any():
            at = int((out < 0).argmax())
            raise UnknownIdError(f"original_ids[{at}]: no node has the id {given[at].as_py()!r}")
        return torch.from_numpy(out)

    def _positions(self, asked: Ids) -> Array:
        """Node ids of original ones, -1 of those that no node has."""
        if self._dense:
            return np.where((asked >= 0) & (asked < self._num_nodes), asked, -1)
        out = np.full(len(asked), -1, np.int64)
        for group in range(len(self._starts) - 1):
            table = _C.IdTable(native_ids(as_ids(self._read(group), _as_read)))
            found = to_tensor(table.find(native_ids(asked))).numpy()
            out = np.where(found >= 0, found + self._starts[group], out)
        return out

    def _read(self, group: int) -> Any:
        if self._group[0] != group:
            with table_errors(str(self._path)):
                ids = self._file.read_row_group(group, use_threads=False).column("id")
            self._group = (group, one_array(ids))
        return self._group[1]

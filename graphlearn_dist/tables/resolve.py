"""Columns of ids as numbers of nodes, on disk in the order of rows: a pass over the table for each part of a map."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from .. import _C
from ..core import to_tensor
from ..errors import TableError
from .buckets import Budget
from .columns import Array, CheckedChunk, id_kind, native_ids
from .ids import IdSpace, map_parts, open_part
from .sources import Chunk, ChunkPlace, Table, ahead

UNKNOWN, NULL = -1, -2  # in the place of a node's number
_BARE_ROWS = 1 << 18


def check_kinds(table: Table, ends: Mapping[str, IdSpace], names: Mapping[str, str]) -> None:
    """TableError where a column has ids of another kind than its nodes; ``names`` are those of the types."""
    for column, space in ends.items():
        kind = id_kind(table.types[column])
        if kind is None or (kind == "text") != (space.kind == "text"):
            raise TableError(
                f"{table.files[0]}, column {column!r}: expected ids of {names[column]} as {space.arrow_type}, as their "
                f"own table has them, found {table.types[column]}"
            )


class NodeNumbers:
    """The numbers of the nodes that some columns of a table name.

    Args:
        table: the table.
        columns: by name, the id space of each.
        folder: for what is looked up before; only columns whose ids are mapped have files there.
    """

    def __init__(self, table: Table, columns: Mapping[str, IdSpace], folder: Path) -> None:
        self._table, self._columns, self._folder = table, dict(columns), folder
        self._mapped = [name for name, space in self._columns.items() if space.map_path is not None]

    @property
    def is_needed(self) -> bool:
        """Whether any column has to be looked up."""
        return bool(self._mapped)

    @property
    def read_columns(self) -> list[str]:
        """Columns that ``numbers`` takes from chunks."""
        return [name for name in self._columns if name not in self._mapped]

    def look_up(
        self, root: Path, budget: Budget, drop: frozenset[str], report: Callable[[int], None]
    ) -> dict[str, int]:
        """Writes the files; ``report`` is told how many rows were read. Returns the passes for each column."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        passes = {}
        for space in dict.fromkeys(self._columns[name] for name in self._mapped):
            names = [name for name in self._mapped if self._columns[name] == space]
            parts = map_parts(root, space, budget)
            for number, part in enumerate(parts):
                is_last = number == len(parts) - 1
                table = open_part(root, space, part)
                self._pass(table, part.first, names, number, budget, drop if is_last else None, report)
                del table
                _C.trim_pool()
            passes.update(dict.fromkeys(names, len(parts)))
        return passes

    def _path(self, name: str, number: int | None = None) -> Path:
        return self._folder / (f"{self._mapped.index(name)}" + ("" if number is None else f".{number}"))

    def _pass(
        self,
        table: Any,
        first: int,
        names: Sequence[str],
        number: int,
        budget: Budget,
        drop: frozenset[str] | None,
        report: Callable[[int], None],
    ) -> None:
        pool = _C.ThreadPool(budget.threads)
        with ExitStack() as stack:
            before = {n: stack.enter_context(open(self._path(n, number - 1), "rb")) for n in names if number}
            after = {n: stack.enter_context(open(self._path(n, number), "wb")) for n in names}
            for rows in ahead(self._table.chunks(names)):
                chunk = CheckedChunk(rows, drop if drop is not None else frozenset(("nulls",)))
                for name in names:
                    found = to_tensor(table.find(native_ids(chunk.ids(name)), pool)).numpy()
                    found = np.where(found >= 0, found + first, UNKNOWN)
                    if name in before:
                        found = np.maximum(found, np.fromfile(before[name], np.int64, len(found)))
                    array = rows.columns[name]
                    if array.null_count:
                        found[~array.is_valid().to_numpy(zero_copy_only=False)] = NULL
                    after[name].write(found.data)
                    if drop is not None:
                        reject_unknown(chunk, name, found == UNKNOWN)
                report(rows.num_rows)
        for name in names:
            if number:
                self._path(name, number - 1).unlink()
            if drop is not None:
                self._path(name, number).rename(self._path(name))

    def bare_chunks(self) -> Iterator[Chunk]:
        """Chunks of no columns, as many rows as were looked up; what is wrong with them was said then."""
        left = self._path(self._mapped[0]).stat().st_size // 8
        first, place = 0, ", ".join(self._table.files[:1])
        while left > 0:
            count = min(left, _BARE_ROWS)
            yield Chunk({}, count, ChunkPlace(place, None, first))
            first, left = first + count, left - count

    def numbers(self, chunks: Iterator[CheckedChunk]) -> Iterator[tuple[CheckedChunk, dict[str, Array]]]:
        """Each chunk with the nodes that its rows name, int64 ``[n]`` by column; rows without one are rejected."""
        with ExitStack() as stack:
            files = {name: stack.enter_context(open(self._path(name), "rb")) for name in self._mapped}
            for chunk in chunks:
                found = {}
                for name, space in self._columns.items():
                    if name in files:
                        ids = np.fromfile(files[name], np.int64, chunk.chunk.num_rows)
                        if len(ids) < chunk.chunk.num_rows:
                            place = chunk.chunk.place.of(len(ids))
                            raise TableError(f"{place}: a row that was not there before; the table was changed")
                        chunk.reject(ids == NULL, "nulls", name, lambda i: "expected an id, got null")
                        chunk.reject(ids == UNKNOWN, "unknown_ids", name, lambda i: "no node has this id")
                    else:
                        ids = chunk.ids(name)
                        reject_unknown(chunk, name, (ids < 0) | (ids >= space.count), space.count)
                    found[name] = ids
                yield chunk, found


def reject_unknown(chunk: CheckedChunk, column: str, bad: Array, count: int | None = None) -> None:
    """Rejects rows that name no node."""
    among = "" if count is None else f" (ids are 0 to {count - 1})"
    chunk.reject(
        bad, "unknown_ids", column, lambda i: f"no node has the id {chunk.chunk.columns[column][i].as_py()!r}{among}"
    )

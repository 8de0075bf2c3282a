"""Rows of tables, a chunk at a time and in one order: of the sorted files, one after another."""

from __future__ import annotations

import glob
import os
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from ..errors import GraphLearnError, InvalidArgumentError, TableError
from .config import SourceSpec
from .extra import file_system

T = TypeVar("T")
_CSV_ROW = re.compile(r"Row #(\d+)")
_CSV_COLUMN = re.compile(r"CSV column #(\d+)")
_TEXT_ROW = re.compile(r"string index (\d+)")
_CSV_BLOCK = 4 << 20
_FEW_ROWS = 1024
_GROUP_WORDS = {"parquet": "row group", "orc": "stripe", "arrow": "record batch"}


@dataclass(frozen=True)
class ChunkPlace:
    """Where a chunk lies: a file, the row group in it (None: it has none), and the chunk's first row, from 0."""

    file: str
    group: str | None
    first_row: int

    def of(self, row: int, column: str | None = None) -> str:
        """The place of a row of the chunk, and of a column in it, for messages."""
        parts = [self.file, *([self.group] if self.group else []), f"row {self.first_row + row}"]
        return ", ".join([*parts, *([f"column {column!r}"] if column is not None else [])])


@dataclass(frozen=True)
class Chunk:
    """Some rows of a table: Arrow arrays by column."""

    columns: Mapping[str, Any]
    num_rows: int
    place: ChunkPlace


@contextmanager
def table_errors(file: str) -> Iterator[None]:
    """Turns what Arrow and the system raise for a file that cannot be read into a TableError that names it."""
    try:
        yield
    except GraphLearnError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError, KeyError) as error:
        reason = str(error).strip() or type(error).__name__
        raise TableError(f"{file}: cannot be read: {reason.splitlines()[0]:.500}") from error


def file_mark(path: str | Path) -> list[Any]:
    """Path, size and time of change of a local file; the path alone where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return [str(path)]
    return [str(path), found.st_size, found.st_mtime_ns]


class Table:
    """The rows of a source. Opening it checks that all files have the columns, of one type each.

    Args:
        spec: the source; no query.
        root: where relative paths begin.
        columns: those that are read.
        as_float: of them, columns that hold numbers: CSV has no types, and whole numbers may be followed by others.
        chunk_bytes: about how much of Arrow's memory a chunk takes.
    """

    def __init__(
        self,
        spec: SourceSpec,
        root: Path,
        columns: Sequence[str],
        *,
        as_float: Iterable[str] = (),
        chunk_bytes: int = 32 << 20,
    ) -> None:
        self.spec = spec
        self.columns = list(dict.fromkeys(columns))
        self._as_float = frozenset(as_float)
        self._chunk_bytes = chunk_bytes
        self._system: Any = None
        self.files = self._find(root)
        self.types: dict[str, Any] = {}
        self.num_rows: int | None = 0  # None: not known before they are read
        self._row_bytes = 8 * len(self.columns)
        self._measured: set[str] = set()  # columns that were read before
        for file in self.files:
            with table_errors(file):
                self._look_at(file)

    def _find(self, root: Path) -> list[str]:
        found: list[str] = []
        protocols = {pattern.partition("://")[0] if "://" in pattern else "" for pattern in self.spec.files}
        if len(protocols) > 1:
            raise InvalidArgumentError(f"files: expected all in one file system, got {', '.join(self.spec.files)}")
        for pattern in self.spec.files:
            matches = self._find_remote(pattern) if "://" in pattern else _find_local(pattern, root)
            if not matches:
                raise InvalidArgumentError(f"files: expected files for {pattern!r}, found none")
            if others := [path for path in matches if self._system is None and _is_no_file(path)]:
                raise InvalidArgumentError(f"files: expected files for {pattern!r}, found {others[0]}, which is none")
            found += sorted(matches)
        if twice := [file for file, count in Counter(found).items() if count > 1]:
            raise InvalidArgumentError(f"files: expected each file once, got {twice[0]} twice")
        return found

    def _find_remote(self, pattern: str) -> list[str]:
        self._system, path = file_system(pattern, dict(self.spec.storage_options))
        with table_errors(pattern):
            if glob.has_magic(path):
                return list(self._system.glob(path))
            if not self._system.isdir(path):
                return [path]
            return [file for file in self._system.ls(path, detail=False) if _is_table(file)]

    def fingerprint(self) -> list[list[Any]]:
        """Path, size and time of change of each file, as far as they are known."""
        if self._system is not None:
            with table_errors(self.files[0]):
                infos = [self._system.info(file) for file in self.files]
            marks = ("mtime", "LastModified", "created", "ETag", "etag")
            return [
                [file, info.get("size"), *(str(info[mark]) for mark in marks if mark in info)]
                for file, info in zip(self.files, infos, strict=True)
            ]
        return [file_mark(file) for file in self.files]

    # --- what is there -----------------------------------------------------------------------------------------

    def _look_at(self, file: str) -> None:
        schema, num_rows, row_bytes = getattr(self, f"_schema_of_{self.spec.format}")(file)
        for column in self.columns:
            place = schema.get_all_field_indices(column)
            if len(place) != 1:
                raise TableError(
                    f"{file}: expected one column {column!r}, found {len(place)}; it has {', '.join(schema.names)}"
                )
            found = schema.field(place[0]).type
            found = found.value_type if pa.types.is_dictionary(found) else found
            expected = self.types.setdefault(column, found)
            if pa.types.is_null(expected):  # nothing but nulls so far, or no rows: it may be any
                expected = self.types[column] = found
            if found != expected and not pa.types.is_null(found):
                raise TableError(
                    f"{file}, column {column!r}: expected {expected}, as in {self.files[0]}, found {found}: a column "
                    "has one type in all files"
                )
        self.num_rows = None if num_rows is None or self.num_rows is None else self.num_rows + num_rows
        self._row_bytes = max(self._row_bytes, row_bytes)

    def _open(self, file: str) -> Any:
        return self._system.open(file, "rb") if self._system is not None else pa.memory_map(file)

    def _parquet(self, file: str) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetFile(self._open(file))

    def _schema_of_parquet(self, file: str) -> tuple[Any, int | None, int]:
        opened = self._parquet(file)
        meta, schema = opened.metadata, opened.schema_arrow
        wanted, total = set(self.columns), 0
        for group in range(min(meta.num_row_groups, 4)):
            columns = (meta.row_group(group).column(i) for i in range(meta.num_columns))
            size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] in wanted)
            total = max(total, size // max(meta.row_group(group).num_rows, 1))
        fixed = [schema.field(name).type for name in self.columns if name in schema.names]
        widths = sum(map(_width, fixed))
        return schema, meta.num_rows, max(total, widths)

    def _schema_of_orc(self, file: str) -> tuple[Any, int | None, int]:
        from pyarrow import orc

        opened = orc.ORCFile(self._open(file))
        return opened.schema, opened.nrows, 0

    def _schema_of_arrow(self, file: str) -> tuple[Any, int | None, int]:
        with self._ipc(file) as opened:
            return opened.schema, None, 0

    def _ipc(self, file: str) -> Any:
        source = self._open(file)
        try:
            return pa.ipc.open_file(source)
        except pa.ArrowInvalid:  # a stream has no footer
            source.seek(0)
            return pa.ipc.open_stream(source)

    def _schema_of_csv(self, file: str) -> tuple[Any, int | None, int]:
        with self._csv_errors(file), self._csv(file) as opened:
            schema = opened.schema
        if unknown := sorted(set(self.spec.types) - set(schema.names)):
            raise InvalidArgumentError(f"format: types: expected columns of {file}, got {unknown[0]!r}")
        for name in self._as_float.intersection(schema.names):
            if pa.types.is_integer(schema.field(name).type) and name not in self.spec.types:
                at = schema.get_field_index(name)
                schema = schema.set(at, pa.field(name, pa.float64()))
        return schema, None, 0

    def _csv(self, file: str) -> Any:
        from pyarrow import csv

        given = {name: self._arrow_type(text) for name, text in self.spec.types.items()}
        found = {name: dtype for name, dtype in self.types.items() if not pa.types.is_null(dtype)}
        opened = self._system.open(file, "rb", compression="infer") if self._system is not None else file
        return csv.open_csv(
            opened,
            read_options=csv.ReadOptions(use_threads=False, block_size=_CSV_BLOCK),
            parse_options=csv.ParseOptions(delimiter=self.spec.separator, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                # An empty field is no text: an id or a label that is not there. Words such as NA may be ids.
                column_types={**found, **given},
                strings_can_be_null=True,
                null_values=[""],
            ),
        )

    def _arrow_type(self, text: str) -> Any:
        try:
            return pa.type_for_alias(text)
        except ValueError as error:
            raise InvalidArgumentError(f"format: types: expected a type of Arrow's, got {text!r}") from error

    # --- rows --------------------------------------------------------------------------------------------------

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Chunk]:
        """All rows, of these columns (None: all that the table was opened for); one of no columns has none either."""
        wanted = list(dict.fromkeys(self.columns if columns is None else columns))
        for file in self.files:
            with table_errors(file):
                yield from getattr(self, f"_chunks_of_{self.spec.format}")(file, wanted)

    @property
    def _chunk_rows(self) -> int:
        """Rows of a chunk. How long lists are, in few bytes of a file maybe, nobody knows before some were read."""
        lists = {name for name, t in self.types.items() if pa.types.is_list(t) or pa.types.is_large_list(t)}
        if lists - self._measured:
            return _FEW_ROWS
        return max(min(self._chunk_bytes // max(self._row_bytes, 1), 1 << 20), _FEW_ROWS)

    def _chunk(self, file: str, group: int | None, first_row: int, batch: Any, columns: Sequence[str]) -> Chunk:
        if batch.num_rows:
            self._row_bytes = max(self._row_bytes, batch.nbytes // batch.num_rows)
            self._measured.update(columns)
        name = None if group is None else f"{_GROUP_WORDS[self.spec.format]} {group}"
        found, place = {}, ChunkPlace(file, name, first_row)
        for column in columns:
            found[column] = _plain(batch.column(column), self.types[column])
            _check_text(found[column], place, column)
        return Chunk(found, batch.num_rows, place)

    def _chunks_of_parquet(self, file: str, columns: list[str]) -> Iterator[Chunk]:
        opened = self._parquet(file)
        for group in range(opened.metadata.num_row_groups):
            first = 0
            for batch in opened.iter_batches(self._chunk_rows, row_groups=[group], columns=columns):
                yield self._chunk(file, group, first, batch, columns)
                first += batch.num_rows

    def _chunks_of_orc(self, file: str, columns: list[str]) -> Iterator[Chunk]:
        from pyarrow import orc

        opened = orc.ORCFile(self._open(file))
        for stripe in range(opened.nstripes):
            yield from self._sliced(file, stripe, opened.read_stripe(stripe, columns=columns), columns)

    def _chunks_of_arrow(self, file: str, columns: list[str]) -> Iterator[Chunk]:
        with self._ipc(file) as opened:
            is_file = hasattr(opened, "num_record_batches")
            batches = map(opened.get_batch, range(opened.num_record_batches)) if is_file else opened
            for number, batch in enumerate(batches):
                yield from self._sliced(file, number, batch, columns)

    def _sliced(self, file: str, group: int, batch: Any, columns: list[str]) -> Iterator[Chunk]:
        rows = self._chunk_rows
        for first in range(0, batch.num_rows, rows):
            yield self._chunk(file, group, first, batch.slice(first, rows), columns)

    def _chunks_of_csv(self, file: str, columns: list[str]) -> Iterator[Chunk]:
        first = 0
        with self._csv_errors(file), self._csv(file) as opened:
            for batch in opened:
                yield self._chunk(file, None, first, batch, columns)
                first += batch.num_rows

    @contextmanager
    def _csv_errors(self, file: str) -> Iterator[None]:
        try:
            yield
        except pa.ArrowInvalid as error:
            raise TableError(f"{file}{_csv_place(str(error), file, self.spec.separator)}: {error}") from error


def _find_local(pattern: str, root: Path) -> list[str]:
    pattern = os.path.expanduser(pattern)
    path = os.path.join(root, pattern)
    if os.path.isdir(path):
        return [entry.path for entry in os.scandir(path) if _is_table(entry.path)]
    if os.path.exists(path) or not glob.has_magic(pattern):  # a name may have brackets, and a folder's is no pattern
        return [path]
    return [os.path.join(root, found) for found in glob.glob(pattern, root_dir=root, recursive=True)]


def _is_no_file(path: str) -> bool:
    """Whether there is something else, such as a pipe, whose rows cannot be read twice."""
    return os.path.exists(path) and not os.path.isfile(path)


def _is_table(path: str) -> bool:
    """Whether a file of a folder has rows: marks such as _SUCCESS and hidden files have none."""
    return not os.path.basename(path).startswith(("_", "."))


def _width(dtype: Any) -> int:
    """Bytes of a value of a type that is always as wide; 0 of others."""
    if pa.types.is_fixed_size_list(dtype):
        return int(dtype.list_size) * _width(dtype.value_type)
    return int(dtype.bit_width) // 8 if pa.types.is_primitive(dtype) else 0


def _csv_place(text: str, file: str, separator: str) -> str:
    """Row and column of an error of Arrow's, as far as it says them; Arrow counts rows from 1, with the header."""
    row, column = _CSV_ROW.search(text), _CSV_COLUMN.search(text)
    name = ""
    if column is not None:
        try:
            with open(file, encoding="utf-8-sig") as opened:
                name = opened.readline().rstrip("\r\n").split(separator)[int(column[1])].strip('"')
        except (OSError, ValueError, IndexError):  # a remote file: the number says it too
            name = column[1]
    return (f", row {int(row[1]) - 2}" if row else "") + (f", column {name!r}" if name else "")


def _plain(column: Any, expected: Any) -> Any:
    """A column as one array, without a dictionary, of the type that it has in all files."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == expected else column.cast(expected)


def _check_text(array: Any, place: ChunkPlace, column: str) -> None:
    """TableError where a text is no UTF-8, which most readers do not look at."""
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        row = _TEXT_ROW.search(str(error))
        raise TableError(f"{place.of(int(row[1]) if row else 0, column)}: expected UTF-8: {error}") from error


def ahead(rows: Iterable[T], depth: int = 1) -> Iterator[T]:
    """The same, made in a thread of its own, at most ``depth`` ahead of who takes them."""
    made: queue.Queue[Any] = queue.Queue(depth)
    is_over = threading.Event()

    def put(item: Any) -> bool:
        while not is_over.is_set():
            try:
                made.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def make() -> None:
        try:
            for row in rows:
                if not put((row, None)):
                    return
            put((None, StopIteration))
        except BaseException as error:  # it is raised where they are taken
            put((None, error))

    thread = threading.Thread(target=make, name="table reader", daemon=True)
    thread.start()
    try:
        while True:
            row, error = made.get()
            if error is StopIteration:
                return
            if error is not None:
                raise error
            yield row
    finally:
        is_over.set()
        thread.join()


Progress = Callable[[str, int, "int | None"], None]

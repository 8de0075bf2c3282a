"""Rows of nodes in files: ``.npy`` by node id, or Parquet with the ids of the user's tables; and their reader."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ..errors import InvalidArgumentError, StorageError
from ..partition.layout import type_folder
from ..typing import NodeType
from ..utils.paths import to_path
from ..utils.values import is_whole, label_of
from .rows import Rows, RowsHere

_META = "RESULTS.json"
_FORMAT = "graphlearn-dist-results"
_STORED = ("float32", "float16", "float64")
ResultFormat = Literal["npy", "parquet"]


@dataclass(frozen=True)
class _Stored:
    """The rows of a node type: in memory, or in files one behind the other.

    Attributes:
        rows: in memory.
        files: where they are not.
        count: rows of all files together.
        width: numbers of a row.
        dtype: of these.
    """

    rows: torch.Tensor | None
    files: tuple[Path, ...] = ()
    count: int = 0
    width: int = 0
    dtype: str = ""

    def parts(self) -> Iterator[tuple[Any, torch.Tensor]]:
        """(ids or None, rows) of each file.

        Raises:
            StorageError: one cannot be read, or does not hold what was written.
        """
        seen = 0
        for path in self.files:
            ids, rows = _read(path)
            seen += len(rows)
            if rows.dim() != 2 or rows.size(1) != self.width or _name_of(rows.dtype) != self.dtype:
                raise StorageError(
                    f"{path}: expected {self.dtype} rows of {self.width} numbers, found {_name_of(rows.dtype)} "
                    f"{list(rows.shape)}"
                )
            yield ids, rows
        if seen != self.count:
            raise StorageError(f"{self.files[0].parent}: expected {self.count} rows in all files, found {seen}")


class Results:
    """Rows of all nodes of some types.

    ``open_results`` reads them from a directory; ``infer`` gives them.
    """

    def __init__(self, stored: Mapping[Any, _Stored], directory: Path | None = None) -> None:
        self._stored: dict[Any, _Stored] = dict(stored)
        self._directory = directory

    @classmethod
    def in_memory(cls, rows: Mapping[Any, torch.Tensor], directory: Path | None = None) -> Results:
        """Of tensors ``[num_nodes, width]`` by node type; ``directory``: of the partitions."""
        return cls({key: _Stored(tensor) for key, tensor in rows.items()}, directory)

    @property
    def node_types(self) -> list[NodeType | None]:
        """The types that have rows; ``[None]`` of a homogeneous graph."""
        return list(self._stored)

    def rows(self, node_type: NodeType | None = None) -> torch.Tensor:
        """``[num_nodes, width]``, the row of a node at its id; one ``.npy`` file is mapped, else they are read.

        Raises:
            InvalidArgumentError: the type has no rows.
        """
        stored = self._of(node_type)
        if stored.rows is not None:
            return stored.rows
        parts = [rows for _, rows in stored.parts()]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def batches(self, node_type: NodeType | None = None) -> Iterator[tuple[Any, torch.Tensor]]:
        """(ids, rows ``[n, width]``), file by file.

        Ids are int64 arrays; of Parquet files, Arrow arrays of the ids that they have.
        """
        stored = self._of(node_type)
        if stored.rows is not None:
            yield np.arange(len(stored.rows)), stored.rows
        first = 0
        for ids, rows in stored.parts():
            yield np.arange(first, first + len(rows)) if ids is None else ids, rows
            first += len(rows)

    def write(self, out: str | Path, *, format: ResultFormat = "npy", file_bytes: int = 1 << 30) -> Results:
        """Writes the rows to another directory, new or empty; see ``write_results``."""
        check_free(Path(out))
        rows = {key: self.rows(key) for key in self._stored}
        write_results(out, rows, directory=self._directory, format=format, file_bytes=file_bytes)
        return open_results(out)

    def _of(self, node_type: NodeType | None) -> _Stored:
        if node_type not in self._stored:
            raise InvalidArgumentError(f"node_type: expected one of {self.node_types}, got {node_type!r}")
        return self._stored[node_type]


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _read(path: Path) -> tuple[Any, torch.Tensor]:
    """(ids or None, rows) of a file."""
    try:
        if path.suffix == ".npy":
            return None, torch.from_numpy(np.load(path, mmap_mode="c"))
        import pyarrow.parquet as pq

        table = pq.read_table(path)
    except (OSError, ValueError, EOFError) as error:
        raise StorageError(f"{path}: cannot be read ({error})") from error
    column = table.column("embedding").combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    rows = torch.from_numpy(np.array(flat)).view(len(column), column.type.list_size)
    return table.column("id").combine_chunks(), rows


def write_results(
    out: str | Path,
    rows: Mapping[Any, torch.Tensor],
    *,
    directory: str | Path | None = None,
    format: ResultFormat = "npy",
    file_bytes: int = 1 << 30,
    fingerprint: Mapping[str, Any] | None = None,
) -> None:
    """Writes rows by node type, ``[num_nodes, width]``, in files of at most ``file_bytes`` bytes of rows.

    Args:
        out: the directory.
        rows: float32, float16 or float64.
        directory: of the partitions, whose id maps give the ids of Parquet files; None: node ids.
        format: ``"npy"`` (rows by node id), or ``"parquet"`` (columns ``id`` and ``embedding``).
        file_bytes: see above; a file has at least one row.
        fingerprint: what the rows were made of, to be kept beside them.

    Raises:
        InvalidArgumentError: arguments that are not as said.
        MissingLibraryError: Parquet is asked for, and the extra ``tables`` is not installed.
    """
    check_format(format)
    if not is_whole(file_bytes) or file_bytes < 1:
        raise InvalidArgumentError(f"file_bytes: expected an integer of at least 1, got {file_bytes!r}")
    for node_type, of_type in rows.items():
        if of_type.dim() != 2 or _name_of(of_type.dtype) not in _STORED:
            raise InvalidArgumentError(
                f"{label_of('rows', node_type)}: expected [num_nodes, width] of {', '.join(_STORED)}, got "
                f"{_name_of(of_type.dtype)} {list(of_type.shape)}"
            )
    to_path("out", out)
    here = {node_type: RowsHere(of_type) for node_type, of_type in rows.items()}
    finish_results(out, write_files(out, here, directory, format, file_bytes), fingerprint)


def check_format(given: object) -> None:
    """InvalidArgumentError unless files of this format are written."""
    if given not in ("npy", "parquet"):
        raise InvalidArgumentError(f"format: expected 'npy' or 'parquet', got {given!r}")


def write_files(
    out: str | Path,
    rows: Mapping[Any, Rows],
    directory: str | Path | None,
    format: ResultFormat,
    file_bytes: int,
    *,
    share: tuple[int, int] = (0, 1),
) -> list[dict[str, Any]]:
    """Writes the files of ``write_results``, or of every ``share[1]`` ones the ``share[0]``-th.

    Returns:
        What ``finish_results`` takes: all of the files, whoever writes them.
    """
    out = Path(out)
    entries = []
    for node_type, of_type in rows.items():
        folder = out if node_type is None else out / type_folder(node_type)
        folder.mkdir(parents=True, exist_ok=True)
        step = max(file_bytes // max(of_type.width * of_type.dtype.itemsize, 1), 1)
        ids = _ids_of(directory, node_type) if format == "parquet" else None
        files = []
        for number, first in enumerate(range(0, max(of_type.num_rows, 1), step)):
            path = folder / f"part-{number:05}.{format}"
            files.append(path.relative_to(out).as_posix())
            if number % share[1] != share[0]:
                continue
            part = of_type.read(first, min(first + step, of_type.num_rows))
            if ids is None:
                np.save(path, part.numpy())
            else:
                _write_parquet(path, ids(torch.arange(first, first + len(part))), part)
        entries.append(
            {"type": node_type, "count": of_type.num_rows, "width": of_type.width, "dtype": _name_of(of_type.dtype),
             "files": files}
        )  # fmt: skip
    return entries


def finish_results(out: str | Path, entries: list[dict[str, Any]], fingerprint: Mapping[str, Any] | None) -> None:
    """Writes what makes files that are all there results; those of one that was killed while it wrote others go."""
    out = Path(out)
    written = {out / name for entry in entries for name in entry["files"]}
    for path in {*out.rglob("part-*.npy"), *out.rglob("part-*.parquet")} - written:
        path.unlink()
    meta = {"format": _FORMAT, "version": 1, "nodes": entries, "made_of": dict(fingerprint or {})}
    temporary = out / f".{_META}.new"
    temporary.write_text(json.dumps(meta, indent=1), encoding="utf-8")
    os.replace(temporary, out / _META)


def _ids_of(directory: str | Path | None, node_type: NodeType | None) -> Any:
    """From node ids to an Arrow array of ids."""
    from ..tables import IdMap

    if directory is not None:
        return IdMap(directory, node_type).original_ids
    import pyarrow as pa

    return lambda node_ids: pa.array(node_ids.numpy())


def _write_parquet(path: Path, ids: Any, rows: torch.Tensor) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = pa.array(np.ascontiguousarray(rows.numpy()).reshape(-1))
    embedding = pa.FixedSizeListArray.from_arrays(flat, rows.size(1))
    pq.write_table(pa.table({"id": ids, "embedding": embedding}), path, compression="zstd")


def open_results(directory: str | Path) -> Results:
    """Opens what ``infer`` or ``write_results`` wrote.

    Raises:
        StorageError: it is none, is not complete, or its files are gone.
    """
    root = to_path("directory", directory)
    meta = _read_meta(root)
    if meta is None:
        raise StorageError(f"{root}: expected {_META}, found none: no results, or not complete")
    try:
        stored = {
            entry["type"]: _Stored(
                None, tuple(root / name for name in entry["files"]), entry["count"], entry["width"], entry["dtype"]
            )
            for entry in meta["nodes"]
        }
    except (KeyError, TypeError) as error:
        raise StorageError(f"{root / _META}: damaged: {error!r}") from error
    for path in (path for each in stored.values() for path in each.files):
        if not path.is_file():
            raise StorageError(f"{path}: expected a file, found none")
    return Results(stored)


def _read_meta(root: Path) -> dict[str, Any] | None:
    path = root / _META
    if not path.is_file():
        return None
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        known = meta["format"] == _FORMAT and meta["version"] == 1
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path}: cannot be read ({error})") from error
    if not known:
        raise StorageError(f"{path}: expected {_FORMAT} of version 1, got {meta['format']!r} of {meta['version']!r}")
    return dict(meta)


def is_complete(root: Path, fingerprint: Mapping[str, Any]) -> bool:
    """Whether the results of such a fingerprint are there."""
    meta = _read_meta(root)
    return meta is not None and meta["made_of"] == json.loads(json.dumps(fingerprint))


def check_free(root: Path, but: str = "") -> None:
    """InvalidArgumentError if there is a file in the directory, unless ``but`` is: a write that was not finished."""
    if root.exists() and not root.is_dir():
        raise InvalidArgumentError(f"out: expected a new or empty directory, got {root}, which is none")
    if _read_meta(root) is not None:
        raise InvalidArgumentError(f"out: expected a new or empty directory, got {root}, which has results")
    if not root.is_dir() or (but and (root / but).exists()):
        return
    if any(root.iterdir()):
        raise InvalidArgumentError(f"out: expected a new or empty directory, got {root}, which has files")

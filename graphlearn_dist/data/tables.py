"""Tables of edges and nodes, from wherever a program has them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InvalidArgumentError, StorageError
from ..utils.tensor import convert_to_tensor

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t", "": "\t"}
_KINDS = (*_DELIMITERS, ".npz", ".parquet")


def read_columns(table: Any, name: str, part: int = 0, num_parts: int = 1) -> list[Any]:
    """The columns of a table, or of one of equal parts of its rows.

    Args:
        table: one of

            - a file: ``.csv`` (commas), ``.tsv``, ``.txt`` or no suffix (tabs), no line of names; ``.npz``, whose
              arrays are the columns; ``.parquet``, where pyarrow is installed;
            - columns: a tuple or dict of tensors or arrays of one length;
            - records: an iterable of tuples;
            - ``table(part, num_parts)`` that gives one of these, of this part alone: any other reader.
        name: the argument's name, for errors.
        part: which part.
        num_parts: how many there are.

    Returns:
        Tensors, arrays, or lists of what records have.

    Raises:
        InvalidArgumentError: it is none of these, or its columns differ in length.
        StorageError: a file cannot be read.
    """
    if callable(table):
        return read_columns(table(part, num_parts), name)
    columns = _columns(table, name)
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise InvalidArgumentError(f"{name}: expected columns of one length, got {[len(column) for column in columns]}")
    count = lengths.pop() if lengths else 0
    own = slice(count * part // num_parts, count * (part + 1) // num_parts)
    return [column[own] for column in columns]


def _columns(table: Any, name: str) -> list[Any]:
    if isinstance(table, (str, Path)):
        return _read_file(Path(table), name)
    if isinstance(table, Mapping):
        return list(table.values())
    if isinstance(table, tuple) and all(isinstance(column, (torch.Tensor, np.ndarray)) for column in table):
        return list(table)
    if isinstance(table, Iterable):
        return [list(column) for column in zip(*table, strict=True)]
    raise InvalidArgumentError(
        f"{name}: expected a file, columns, records or a callable that gives them, got {type(table).__name__}"
    )


def _read_file(path: Path, name: str) -> list[Any]:
    kind = path.suffix.lower()
    if kind not in _KINDS or (not kind and not path.is_file()):  # such as the names of tables of a service
        raise InvalidArgumentError(
            f"{name}: expected a .csv, .tsv, .txt, .npz or .parquet file, a file without a suffix (tabs), "
            f"or a callable that gives records, got {path}"
        )
    try:
        if kind in _DELIMITERS:
            with open(path, newline="", encoding="utf-8") as file:
                return [list(column) for column in zip(*csv.reader(file, delimiter=_DELIMITERS[kind]), strict=True)]
        if kind == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return [arrays[key] for key in arrays.files]
        return _read_parquet(path)
    except (OSError, ValueError) as error:
        raise StorageError(f"{name}: {path} cannot be read: {error}") from error


def _read_parquet(path: Path) -> list[Any]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise StorageError(f"{path}: parquet files need pyarrow, which is not installed") from error
    return [column.to_pylist() for column in pyarrow.parquet.read_table(path).columns]


def id_column(column: Any, name: str) -> torch.Tensor:
    """A column of ids, int64; those of text files are read as numbers.

    Raises:
        InvalidArgumentError: something in it is no integer.
    """
    try:
        if isinstance(column, list):
            return torch.tensor([int(value) for value in column], dtype=torch.int64)
        ids: torch.Tensor = convert_to_tensor(column, name=name)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{name}: expected a column of ids: {error}") from error
    if ids.is_floating_point() or ids.dim() != 1:
        raise InvalidArgumentError(f"{name}: expected a column of ids, got {ids.dtype} {list(ids.shape)}")
    return ids.to(torch.int64)


def feature_column(column: Any, name: str) -> torch.Tensor:
    """A column of features, ``[n, dim]``: rows of numbers, or texts (or bytes) of numbers with colons between them.

    Raises:
        InvalidArgumentError: a text is not that, or rows differ in length.
    """
    if not isinstance(column, list):
        rows: torch.Tensor = convert_to_tensor(column, name=name)
        return rows if rows.dim() > 1 else rows[:, None]
    try:
        return torch.tensor([_numbers(value) for value in column], dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{name}: expected rows of numbers, or texts such as '0.5:1:2', all of one length: {error}"
        ) from error


def _numbers(value: Any) -> Sequence[float]:
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str):
        return [float(number) for number in value.split(":")]
    return [float(number) for number in value] if isinstance(value, Iterable) else [float(value)]

"""Records on their way to partitions: on disk in buckets by local row, each of which fits into memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from .. import _C
from ..core import pooled_empty
from ..errors import StorageError
from ..partition.layout import AnyBook
from .columns import Array, tensor_of

_BUCKET_BYTES = 48 << 20  # as many records as sort fast, and do so in two threads at once
_MAX_BUCKETS = 4096

# Name, numpy dtype and shape of an item of each column of a record.
Fields: TypeAlias = "Sequence[tuple[str, Any, tuple[int, ...]]]"


@dataclass(frozen=True)
class Budget:
    """What a build may take.

    Attributes:
        working_bytes: private memory beside what the process had when it began.
        threads: of the core.
    """

    working_bytes: int
    threads: int = 1

    @property
    def bucket_bytes(self) -> int:
        """Records of one bucket: two are sorted at a time, each with its copies and results."""
        return max(min(_BUCKET_BYTES, self.working_bytes // 24), 1 << 12)

    @property
    def largest_bucket_bytes(self) -> int:
        """Records that are sorted at once, where many lie in few rows."""
        return max(self.working_bytes // 16, 1 << 12)

    @property
    def table_bytes(self) -> int:
        """A table of ids, beside the chunks whose ids are looked up in it."""
        return max((self.working_bytes - 6 * self.chunk_bytes) * 9 // 10, 1 << 12)

    @property
    def chunk_bytes(self) -> int:
        """Rows of a table that are read at once: three chunks are there, and copies of one."""
        return max(min(32 << 20, self.working_bytes // 32), 1 << 12)


def record_type(fields: Fields) -> np.dtype[Any]:
    """A record as it lies in a bucket's file, without padding."""
    return np.dtype([("row", np.uint32), *((name, dtype, shape) for name, dtype, shape in fields)])


def choose_shift(book: AnyBook, fields: Fields, expected_records: int, budget: Budget) -> int:
    """The binary logarithm of a bucket's rows, so that about ``bucket_bytes`` of records are in each."""
    num_rows = max(book.num_ids, 1)
    record = record_type(fields).itemsize * max(expected_records, 1) / num_rows
    rows = max(int(budget.bucket_bytes / max(record, 1e-9)), 1)
    rows = min(rows, max(budget.bucket_bytes // 8, 1))  # a row has entries of its own, too
    most = max(min(_MAX_BUCKETS, budget.working_bytes // (4 * 8192)), 2 * book.num_partitions)
    shift = rows.bit_length() - 1
    while num_rows >> shift > most:
        shift += 1
    return min(shift, 31)


class BucketWriter:
    """Distributes records over the buckets in a folder, which is emptied first."""

    def __init__(self, folder: Path, book: AnyBook, shift: int, fields: Fields, budget: Budget) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._fields = fields
        self._pool = _C.ThreadPool(budget.threads)
        items = [int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64)) for _, dtype, shape in fields]
        buckets = sum((book.partition_size(p) >> shift) + 1 for p in range(book.num_partitions))
        buffer = min(max(budget.working_bytes // 4 // buckets, 1 << 12), 1 << 18)
        self._native = _C.RowBuckets(book.native, str(folder), shift, items, buffer)

    def put(self, ids: Array, columns: Sequence[Array]) -> None:
        """Records of the nodes ``ids`` (int32 or int64 ``[n]``); ``columns`` in the order of the fields."""
        parts = [
            tensor_of(np.asarray(column, dtype)) for column, (_, dtype, _) in zip(columns, self._fields, strict=True)
        ]
        self._native.put(tensor_of(ids), parts, self._pool)

    def finish(self) -> list[int]:
        """Writes what is left; gives the number of records of each bucket."""
        self._native.flush()
        return list(self._native.counts())


@dataclass(frozen=True)
class Bucket:
    """One bucket's file: records of the local rows ``[first_row, first_row + num_rows)`` of a partition."""

    path: Path
    first_row: int
    num_rows: int
    count: int
    dtype: np.dtype[Any]

    def read(self) -> Array:
        """All records; their field ``row`` counts from ``first_row``."""
        memory = pooled_empty(
            (self.count * self.dtype.itemsize,), torch.uint8
        ).numpy()  # warm pages, bucket after bucket
        if self.count:
            with open(self.path, "rb") as file:
                file.readinto(memory.data)
        records: Array = memory.view(self.dtype)
        return records

    def pieces(self, records: int) -> Iterator[Array]:
        """The same, some at a time."""
        for first in range(0, self.count, records):
            yield np.fromfile(
                self.path, self.dtype, min(records, self.count - first), offset=first * self.dtype.itemsize
            )


def buckets_of(
    folder: Path, book: AnyBook, partition: int, shift: int, fields: Fields, counts: Sequence[int]
) -> list[Bucket]:
    """A partition's buckets in the order of its rows; StorageError unless each has as many bytes as were written."""
    dtype, first = record_type(fields), 0
    for p in range(partition):
        first += -(-book.partition_size(p) // (1 << shift))
    size, found = book.partition_size(partition), []
    for i, begin in enumerate(range(0, size, 1 << shift)):
        path, count = folder / str(first + i), counts[first + i]
        there = os.path.getsize(path) if path.exists() else 0
        if there != count * dtype.itemsize:
            raise StorageError(f"{path}: expected {count * dtype.itemsize} bytes, found {there}; build it anew")
        found.append(Bucket(path, begin, min(1 << shift, size - begin), count, dtype))
    return found


def columns_of(records: Array, names: Sequence[str]) -> Mapping[str, torch.Tensor]:
    """Fields of records, each as a tensor of its own."""
    return {name: torch.from_numpy(rows) for name, rows in fields_of(records, names).items()}


def fields_of(records: Array, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Fields of records (all unless named), each in memory of its own.

    They are copied always: numpy takes a field of a single record for contiguous, whose strides torch refuses.
    """
    return {name: records[name].copy() for name in (records.dtype.names or () if names is None else names)}

"""Nodes of one type, from their table to the partitions: two passes, one to buckets and one to each file in order."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core import to_tensor
from ..errors import StorageError, TableError
from ..partition.attributes import attr_path
from ..partition.layout import AnyBook, array_path
from ..partition.storage import ArrayFile, ArrayWriter
from ..utils.progress import Report
from ..utils.system.disk import map_new_array
from .arrays import FeatureArray, Scales, feature_arrays, scales_by_array
from .buckets import Bucket, BucketWriter, Budget, Fields, buckets_of, choose_shift, fields_of
from .columns import Array, CheckedChunk, id_kind, is_time
from .config import NodeTable
from .ids import IdRows, IdSpace, NodeIds, find_again, id_rows
from .labels import LabelCoder, Splits, split_codes
from .resolve import NodeNumbers
from .sources import Table, ahead

_AT_ONCE = 1 << 20


class NodeStage:
    """Everything that is done for one node type that has a table.

    Args:
        spec: what the config says.
        table: its rows.
    """

    def __init__(self, spec: NodeTable, table: Table) -> None:
        self.spec = spec
        self.table = table
        self.arrays: list[FeatureArray] = feature_arrays(table, spec.features)
        if spec.id_column is not None and id_kind(table.types[spec.id_column]) is None:
            found = table.types[spec.id_column]
            raise TableError(f"{table.files[0]}, column {spec.id_column!r}: expected integers or texts, found {found}")
        if spec.time_column is not None and not is_time(table.types[spec.time_column]):
            found = table.types[spec.time_column]
            raise TableError(f"{table.files[0]}, column {spec.time_column!r}: expected times, found {found}")

    @staticmethod
    def columns_of(spec: NodeTable) -> list[str]:
        """Columns that are read."""
        label = spec.label
        names = [spec.id_column, spec.time_column, *(c for f in spec.features for c in f.columns)]
        names += [label.column, label.split_column] if label is not None else []
        return [name for name in names if name is not None]

    @staticmethod
    def float_columns(spec: NodeTable) -> list[str]:
        """Of them, those that hold numbers which may have fractions."""
        names = [c for f in spec.features for c in f.columns]
        label = spec.label
        return [*names, label.column] if label is not None and label.task == "regression" and label.column else names

    # --- ids ---------------------------------------------------------------------------------------------------

    def make_ids(self, root: Path, scratch: Path, budget: Budget, report: Report) -> tuple[IdSpace, dict[str, int]]:
        """The id space, and how many rows were dropped for which reason."""
        column, counts = self.spec.id_column, Counter[str]()
        if column is None:  # a node's id is its row
            return IdSpace(sum(rows.num_rows for rows in self.table.chunks()), "dense"), {}

        def rows() -> Iterator[IdRows]:
            counts.clear()  # of a pass before
            return id_rows(self._checked(counts, report), column)

        ids = NodeIds(
            self.spec.label_name,
            column,
            rows,
            self.table.types[column],
            distinct=True,
            drop_doubles="double_ids" in self.spec.drop,
            counts=counts,
        )
        return ids.make(root, self.spec.key, scratch, budget), dict(counts)

    def _checked(self, counts: Counter[str], report: Report) -> Iterator[CheckedChunk]:
        """Chunks of ids, and of all else that may drop a row."""
        drop = self.spec.drop
        more = bool(drop & {"nulls", "nonfinite"})
        for rows in ahead(self.table.chunks(None if more else [str(self.spec.id_column)])):
            chunk = CheckedChunk(rows, drop, counts)
            chunk.ids(str(self.spec.id_column))
            if more:
                self._check_values(chunk)
            report(rows.num_rows)
            yield chunk

    def _check_values(self, chunk: CheckedChunk) -> list[Array]:
        """Arrays of all rows; rows that have none are rejected."""
        found = [array.raw(chunk) for array in self.arrays]
        return [*found, chunk.times(self.spec.time_column)] if self.spec.time_column is not None else found

    # --- to buckets --------------------------------------------------------------------------------------------

    @property
    def fields(self) -> Fields:
        """What a record holds."""
        fields: list[tuple[str, Any, tuple[int, ...]]] = [
            (f"f{i}", array.raw_dtype, (array.width,)) for i, array in enumerate(self.arrays)
        ]
        if self.spec.time_column is not None:
            fields.append(("time", np.int64, ()))
        if self.spec.label is not None and self.spec.label.column is not None:
            fields.append(("label", LabelCoder(self.spec.label, self.table).dtype, ()))
        return fields

    def scatter(
        self, space: IdSpace, book: AnyBook, scratch: Path, root: Path, budget: Budget, seed: int, report: Report
    ) -> dict[str, Any]:
        """Writes buckets and splits, and the times by node id; returns what ``gather`` needs, in JSON's types."""
        spec, fields = self.spec, self.fields
        shift = choose_shift(book, fields, space.count, budget)
        writer = BucketWriter(scratch / "rows", book, shift, fields, budget)
        coder = LabelCoder(spec.label, self.table) if spec.label is not None and spec.label.column is not None else None
        splits = Splits(spec.label, space.count) if spec.label is not None else None
        split_column = spec.label.split_column if spec.label is not None else None
        scales = Scales(self.arrays)
        seen = np.zeros(space.count, np.bool_) if "double_ids" in spec.drop else None
        for chunk, ids in self._numbered(space, scratch, report):
            columns = self._check_values(chunk)
            if seen is not None:
                chunk.leave_out_kept(find_again(chunk.kept(ids), seen))
            nodes, kept = chunk.kept(ids), [chunk.kept(column) for column in columns]
            for i in range(len(self.arrays)):
                scales.see(i, kept[i])
            codes, labelled = coder.codes(chunk) if coder is not None else (None, None)
            if codes is not None:
                kept.append(codes)
            if splits is not None:
                splits.see(nodes, split_codes(chunk, split_column) if split_column is not None else None, labelled)
            writer.put(nodes, kept)
        files = list(splits.write(root, spec.key, seed)) if splits is not None else []
        return {
            "shift": shift,
            "counts": writer.finish(),
            "scales": scales.to_list(),
            "label": coder.to_dict() if coder is not None else None,
            "files": [file.to_dict() for file in files],
            "split": {file.path.rsplit("/", 1)[1].removesuffix(".npy"): file.shape[0] for file in files},
        }

    def _numbered(self, space: IdSpace, scratch: Path, report: Report) -> Iterator[tuple[CheckedChunk, Array]]:
        chunks = (CheckedChunk(rows, self.number_drops) for rows in ahead(self.table.chunks()))
        if self.spec.id_column is None:
            first = 0
            for chunk in chunks:
                count = chunk.chunk.num_rows
                report(count)
                yield chunk, np.arange(first, first + count)
                first += count
            return
        for chunk, found in self.numbers(space, scratch).numbers(chunks):
            report(chunk.chunk.num_rows)
            yield chunk, found[self.spec.id_column]

    @property
    def number_drops(self) -> frozenset[str]:
        """Reasons to leave rows out when numbers are looked up: those that were dropped before have none."""
        drop = self.spec.drop
        return drop | {"unknown_ids"} if drop & {"nulls", "nonfinite"} else drop

    def numbers(self, space: IdSpace, scratch: Path) -> NodeNumbers:
        """The nodes that rows are about."""
        return NodeNumbers(self.table, {str(self.spec.id_column): space}, scratch / "ids")

    # --- from buckets ------------------------------------------------------------------------------------------

    def gather(
        self, done: Mapping[str, Any], book: AnyBook, scratch: Path, root: Path, report: Report
    ) -> list[ArrayFile]:
        """Writes the arrays of each partition."""
        scales, label = scales_by_array(self.arrays, done["scales"]), done["label"]
        final = None if label is None or label["final"] is None else np.asarray([*label["final"], -1], np.int64)
        files = []
        for p in range(book.num_partitions):
            size = book.partition_size(p)
            with ExitStack() as stack:
                writers = [stack.enter_context(w) for w in self._writers(root, p, size)]
                for bucket in buckets_of(scratch / "rows", book, p, done["shift"], self.fields, done["counts"]):
                    rows = fields_of(rows_in_order(bucket))
                    parts = [a.store(rows[f"f{i}"], scales[i]) for i, a in enumerate(self.arrays)]
                    if self.spec.time_column is not None:
                        parts.append(torch.from_numpy(rows["time"]))
                    if label is not None:
                        codes = rows["label"]
                        parts.append(torch.from_numpy(codes if final is None else final[codes]))
                    for writer, part in zip(writers, parts, strict=True):
                        writer.append(part)
                    report(bucket.num_rows)
                files += [writer.finish() for writer in writers]
        return files

    def _writers(self, root: Path, partition: int, size: int) -> Iterator[ArrayWriter]:
        key = self.spec.key
        for array in self.arrays:
            path = (
                array_path("node_feat", key, "x", partition)
                if array.is_main
                else attr_path("node_attr", key, array.spec.name, partition)
            )
            yield ArrayWriter(root, path, array.stored_dtype, (size, array.width))
        if self.spec.time_column is not None:
            yield ArrayWriter(root, array_path("node_time", key, "t", partition), torch.int64, (size,))
        if self.spec.label is not None and self.spec.label.column is not None:
            dtype = torch.float32 if self.spec.label.task == "regression" else torch.int64
            yield ArrayWriter(root, array_path("node_label", key, "y", partition), dtype, (size,))

    def describe(self, done: Mapping[str, Any]) -> dict[str, Any]:
        """What META.json says of the columns."""
        scales, label = scales_by_array(self.arrays, done["scales"]), self.spec.label
        found: dict[str, Any] = {
            "features": [array.describe(scale) for array, scale in zip(self.arrays, scales, strict=True)]
        }
        if label is not None:
            known = done["label"] or {}
            found["label"] = {
                "column": label.column,
                "task": label.task,
                "class_names": known.get("class_names"),
                "num_classes": known.get("num_classes"),
            }
            found["split"] = done["split"]
        if self.spec.time_column is not None:
            found["time"] = {"column": self.spec.time_column, "type": str(self.table.types[self.spec.time_column])}
        return found


def rows_in_order(bucket: Bucket) -> Array:
    """A bucket's records by row; StorageError unless each row has one."""
    records = bucket.read()
    out = np.empty(bucket.num_rows, bucket.dtype)
    there = np.zeros(bucket.num_rows, np.bool_)
    there[records["row"]] = True
    if len(records) != bucket.num_rows or not there.all():
        raise StorageError(
            f"{bucket.path}: expected one record for each of {bucket.num_rows} rows, found {len(records)} for "
            f"{int(there.sum())}; did the tables change during the build?"
        )
    out[records["row"]] = records
    return out


def times_by_node(root: Path, key: Any, book: AnyBook, scratch: Path) -> Array:
    """The times of all nodes by their ids, int64 ``[n]``, mapped from a file that is made of the partitions'."""
    path = scratch / ("times-" + hashlib.blake2b(repr(key).encode(), digest_size=8).hexdigest())
    if not book.num_ids:
        return np.empty(0, np.int64)
    times = map_new_array(path, np.int64, (book.num_ids,))
    for p in range(book.num_partitions):
        part = np.load(root / array_path("node_time", key, "t", p), mmap_mode="r")
        ids = to_tensor(book.native.global_ids(p)).numpy()
        for first in range(0, len(part), _AT_ONCE):
            times[ids[first : first + _AT_ONCE]] = part[first : first + _AT_ONCE]
        del ids
    return times


def earliest_of(times: Sequence[int] | Array) -> int | None:
    """The node of the least time, of several the first; None where there is none."""
    return int(np.argmin(times)) if len(times) else None

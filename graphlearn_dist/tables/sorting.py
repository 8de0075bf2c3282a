"""From the buckets of a partition's edges to its rows in canonical order, with as much in memory as is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from .. import _C
from ..core import to_tensor
from .buckets import Bucket, Budget, columns_of
from .columns import Array

# A field of records, its least value, and one more than its greatest; None: any.
Range: TypeAlias = "tuple[str, int | None, int | None]"


@dataclass(frozen=True)
class SortedRows:
    """Some consecutive rows of a graph, or a part of one row: ``sizes`` int64 ``[num_rows]``, arrays by edge."""

    sizes: torch.Tensor
    arrays: Mapping[str, torch.Tensor]
    continues: bool = False  # the first row is the last one of what came before


class BucketSorter:
    """Sorts the records of edges: by row, then as ``_C.build_csr`` does.

    Args:
        num_cols: nodes at the far end.
        names: of what edges have beside ``col`` and ``eid``: some of ``time`` and ``weight``.
        num_edges: of the type; ids of edges below 0 are counted from there (see EdgeStage).
        budget: of the build.
    """

    def __init__(self, num_cols: int, names: Sequence[str], num_edges: int, budget: Budget) -> None:
        self._num_cols, self._names, self._num_edges, self._budget = num_cols, list(names), num_edges, budget

    def sort(self, buckets: Sequence[Bucket]) -> Iterator[SortedRows]:
        """The rows of all buckets, in their order; two buckets are sorted at a time where there are threads."""
        with ThreadPoolExecutor(max(min(self._budget.threads, 2), 1), "sort edges") as threads:
            waiting: list[Future[SortedRows]] = []
            for bucket in buckets:
                if bucket.count * bucket.dtype.itemsize > self._budget.largest_bucket_bytes:
                    while waiting:
                        yield waiting.pop(0).result()
                    yield from self._by_parts(bucket)
                    continue
                waiting.append(threads.submit(self._whole, bucket))
                if len(waiting) > 1:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()

    def _whole(self, bucket: Bucket) -> SortedRows:
        return self._sorted(bucket.read(), bucket.num_rows)

    def _sorted(self, records: Array, num_rows: int, continues: bool = False) -> SortedRows:
        columns = columns_of(records, ["col", "eid", *self._names])
        rows = torch.from_numpy(records["row"].astype(np.int32))
        ids = torch.where(columns["eid"] < 0, self._num_edges - 1 - columns["eid"], columns["eid"])
        del records
        capsules = _C.build_csr(
            rows,
            columns["col"],
            ids,
            num_rows,
            self._num_cols,
            _C.ThreadPool(1),
            columns.get("time"),
            columns.get("weight"),
        )
        found = [to_tensor(capsule) for capsule in capsules]
        arrays = dict(zip(("indices", "edge_ids"), found[1:3], strict=True))
        given = [name for name in ("times", "weights") if name.removesuffix("s") in columns]
        arrays.update(zip(given, found[3:], strict=True))
        return SortedRows(found[0].diff(), arrays, continues)

    # --- buckets that are too large, since few rows have many edges ---------------------------------------------

    def _by_parts(self, bucket: Bucket) -> Iterator[SortedRows]:
        """Reads a bucket once for each range of rows that fits; a row that does not fit by itself, likewise by key."""
        most = max(self._budget.largest_bucket_bytes // bucket.dtype.itemsize, 1)
        sizes = np.zeros(bucket.num_rows, np.int64)
        for records in bucket.pieces(most):
            sizes += np.bincount(records["row"], minlength=bucket.num_rows)
        begin = 0
        while begin < bucket.num_rows:
            within = int(np.searchsorted(np.cumsum(sizes[begin:]), most, side="right"))
            end = begin + max(within, 1)
            if within:
                yield self._sorted(self._of_rows(bucket, most, begin, end), end - begin)
            else:
                yield from self._one_row(bucket, most, begin, int(sizes[begin]))
            begin = end

    def _of_rows(self, bucket: Bucket, most: int, begin: int, end: int) -> Array:
        found = []
        for records in bucket.pieces(most):
            mine = records[(records["row"] >= begin) & (records["row"] < end)]
            mine["row"] -= begin
            found.append(mine)
        return np.concatenate(found) if found else np.empty(0, bucket.dtype)

    def _one_row(self, bucket: Bucket, most: int, row: int, size: int) -> Iterator[SortedRows]:
        """A row by ranges of what it is sorted by."""
        keys = ["time", "col", "eid"] if "time" in self._names else ["col", "eid"]
        for number, part in enumerate(self._by_keys(bucket, most, size, [("row", row, row + 1)], keys)):
            part["row"] = 0
            yield self._sorted(part, 1, continues=number > 0)

    def _by_keys(
        self, bucket: Bucket, most: int, size: int, ranges: list[Range], keys: Sequence[str]
    ) -> Iterator[Array]:
        """The records within all ``ranges``, ``size`` of them, in parts of at most ``most`` that ascend by ``keys``."""
        if size <= most:
            yield np.concatenate(list(self._within(bucket, most, ranges)))
            return
        key, step, parts = keys[0], max(size >> 16, 1), -(-2 * size // most)
        sample = np.sort(np.concatenate([self._key(r, key)[::step] for r in self._within(bucket, most, ranges)]))
        cuts = sample[np.arange(1, parts) * len(sample) // parts]
        bounds = np.unique(np.concatenate([cuts, cuts[cuts < np.iinfo(cuts.dtype).max] + 1]))  # each cut by itself
        counts = np.zeros(len(bounds) + 1, np.int64)
        for records in self._within(bucket, most, ranges):
            counts += np.bincount(np.searchsorted(bounds, self._key(records, key), side="right"), minlength=len(counts))
        ends = [None, *bounds.tolist(), None]
        begin = 0
        while begin < len(counts):
            end = begin + max(int(np.searchsorted(np.cumsum(counts[begin:]), most, side="right")), 1)
            low, high, count = ends[begin], ends[end], int(counts[begin:end].sum())
            # What has one value here, and is still too much, is told apart by the next key.
            is_one = low is not None and (high == low + 1 or low == np.iinfo(cuts.dtype).max)
            if count:
                yield from self._by_keys(bucket, most, count, [*ranges, (key, low, high)], keys[1:] if is_one else keys)
            begin = end

    def _within(self, bucket: Bucket, most: int, ranges: Sequence[Range]) -> Iterator[Array]:
        for records in bucket.pieces(most):
            is_in = np.ones(len(records), np.bool_)
            for key, low, high in ranges:
                values = self._key(records, key)
                is_in &= (values >= low) if low is not None else True
                is_in &= (values < high) if high is not None else True
            yield records[is_in]

    def _key(self, records: Array, name: str) -> Array:
        values: Array = records[name]
        return np.where(values < 0, self._num_edges - 1 - values, values) if name == "eid" else values


def joined_offsets(pieces: Iterator[SortedRows]) -> Iterator[tuple[torch.Tensor, Mapping[str, torch.Tensor]]]:
    """For each piece the ends of its rows, counted from the first piece's beginning, and its arrays.

    The end of a row that goes on in the next piece comes with its last part.
    """
    total, held = 0, None
    for piece in pieces:
        ends = piece.sizes.cumsum(0) + total
        total += int(piece.sizes.sum())
        if held is not None and not piece.continues:
            ends = torch.cat([held, ends])
        held = ends[-1:]
        yield ends[:-1], piece.arrays
    if held is not None:
        yield held, {}

"""From the buckets of a partition's edges to its rows in canonical order, with as much in memory as is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from .. import _C
from ..core import to_tensor
from .buckets import Bucket, Budget, columns_of
from .columns import Array


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
        """A row by ranges of what it is sorted by first: its times, or its neighbors."""
        key = "time" if "time" in self._names else "col"
        step = max(size >> 16, 1)
        sample = np.sort(
            np.concatenate([records[key][records["row"] == row][::step] for records in bucket.pieces(most)])
        )
        parts = -(-2 * size // most)
        cuts = np.unique(sample[np.arange(1, parts) * len(sample) // parts])
        bounds = [None, *cuts.tolist(), None]
        for number, (low, high) in enumerate(pairwise(bounds)):
            found = []
            for records in bucket.pieces(most):
                is_in = records["row"] == row
                is_in &= (records[key] >= low) if low is not None else True
                is_in &= (records[key] < high) if high is not None else True
                found.append(records[is_in])
            part = np.concatenate(found)
            part["row"] = 0
            yield self._sorted(part, 1, continues=number > 0)


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

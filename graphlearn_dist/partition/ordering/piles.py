"""Rows on their way to other partitions, in another order: in files that fit into memory, written and read once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from ...errors import PartitionFormatError

PILE_BYTES = 64 << 20  # on the average
_ROW, _COUNT = "row", "count"

# The partition and the row that ids have now, int64 each; partition -1: nobody wants them.
Locate: TypeAlias = "Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]"


class Piles:
    """Rows in the order in which they come, until they are taken in the order of their new places.

    Nothing is put to a random place of a file, nor looked up there: what is larger than memory goes to disk and comes
    back from front to back. A pile has so many rows of one partition.

    Args:
        folder: for the files; made, and empty when all was taken.
        sizes: how many rows each partition will have.
        row_bytes: of a row on the average.
        locate: where ids go.
    """

    def __init__(self, folder: Path, sizes: list[int], row_bytes: int, locate: Locate) -> None:
        folder.mkdir()
        self._folder, self._sizes, self._locate = folder, sizes, locate
        self._rows = max(PILE_BYTES // max(row_bytes, 1), 1)
        self._first = list(accumulate((-(-size // self._rows) for size in sizes), initial=0))
        self.num_items = [0] * len(sizes)  # of lists, by partition
        self._forms: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}

    def put(self, ids: torch.Tensor, columns: Mapping[str, torch.Tensor]) -> None:
        """Rows of ids, int64 ``[n]``: of each column as many."""
        for number, rows, positions in self._by_pile(ids):
            self._append(number, _ROW, rows)
            for name, column in columns.items():
                self._append(number, name, column[positions])

    def put_lists(
        self,
        ids: torch.Tensor,
        counts: torch.Tensor,
        pick: Callable[[torch.Tensor], Mapping[str, torch.Tensor]],
    ) -> None:
        """Rows that are lists of ``counts`` items; ``pick`` gives those of some of them, one behind the other."""
        for number, rows, positions in self._by_pile(ids):
            self._append(number, _ROW, rows)
            self._append(number, _COUNT, counts[positions])
            self.num_items[bisect_right(self._first, number) - 1] += int(counts[positions].sum())
            for name, items in pick(positions).items():
                self._append(number, name, items)

    def take(self, partition: int) -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
        """The piles of a partition in order, which are gone then: where to find each of its rows, and the columns.

        Raises:
            PartitionFormatError: a row did not come, or came twice: they are not what the books say.
        """
        for number in range(self._first[partition], self._first[partition + 1]):
            begin = (number - self._first[partition]) * self._rows
            rows = self._read(number, _ROW) - begin
            expected = min(self._rows, self._sizes[partition] - begin)
            order = rows.argsort()
            if not torch.equal(rows[order], torch.arange(expected)):
                raise PartitionFormatError(
                    f"partition {partition}: expected rows {begin} to {begin + expected} once each, got {len(rows)}"
                )
            yield order, {name: self._read(number, name) for name in self._forms if name != _ROW}

    def take_lists(self, partition: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]]:
        """As ``take``, of lists; the counts come between."""
        for order, columns in self.take(partition):
            yield order, columns.pop(_COUNT), columns

    def close(self) -> None:
        """Removes the folder, from which all was taken."""
        self._folder.rmdir()

    def _by_pile(self, ids: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """The number of each pile that gets some of these, their rows, and their positions in ``ids``."""
        owners, rows = self._locate(ids)
        numbers = torch.tensor(self._first)[owners] + rows.div(self._rows, rounding_mode="floor")
        numbers[owners < 0] = -1
        order = numbers.argsort(stable=True)
        found, sizes = torch.unique(numbers, return_counts=True)
        ends = [0, *sizes.cumsum(0).tolist()]
        for number, (begin, end) in zip(found.tolist(), pairwise(ends), strict=True):
            if number >= 0:
                positions = order[begin:end]
                yield number, rows[positions], positions

    def _path(self, number: int, name: str) -> Path:
        return self._folder / f"{number}.{name}"

    def _append(self, number: int, name: str, values: torch.Tensor) -> None:
        self._forms.setdefault(name, (values.dtype, tuple(values.shape[1:])))
        with self._path(number, name).open("ab") as file:  # none stays open: there may be many
            file.write(values.contiguous().view(-1).view(torch.uint8).numpy().data)

    def _read(self, number: int, name: str) -> torch.Tensor:
        path, (dtype, shape) = self._path(number, name), self._forms.get(name, (torch.int64, ()))
        if not path.exists():
            return torch.empty((0, *shape), dtype=dtype)
        values = np.fromfile(path, np.uint8)
        path.unlink()
        if not len(values):  # torch cannot tell how these would lie in another dtype
            return torch.empty((0, *shape), dtype=dtype)
        return torch.from_numpy(values).view(dtype).view(-1, *shape)

"""Which draws a batch has that is asked for by the positions of its seeds: it has no place in a loader's epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.utils.data import get_worker_info

from .schedule import batch_index

_MAX_COUNTED = 1 << 16  # 9 MB at most


@dataclass(frozen=True)
class _Counted:
    """How often batches were asked for in an epoch.

    Attributes:
        epoch: the epoch.
        is_chosen: whether the program named it.
        fill: how many tables of this epoch were full before.
        fills: counts them.
        times: by the hash of a batch's positions.
    """

    epoch: int
    is_chosen: bool
    fill: int = 0
    fills: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    times: dict[int, Iterator[int]] = field(default_factory=dict)


class PlacesByPositions:
    """Gives batches that are asked for by positions a place (epoch, index), and another one each time.

    The first time in an epoch the index is the hash of the positions (``batch_index``), so that a program which asks in
    the same order again gets the same batches. In a worker process of a torch ``DataLoader``, which knows nothing of
    what other workers and earlier ones were asked for, the seed that torch gives it enters, too, unless the program
    chose the epoch: then batches do not depend on the workers.

    Threads may share it. A fork may be made at any moment: it has no lock. Its memory is bounded: behind 65,536 batches
    it begins to count anew, with indices that are no plain hashes any more.
    """

    def __init__(self) -> None:
        self._counted = _Counted(0, False)

    def choose(self, epoch: int) -> None:
        """From now on this epoch, from its beginning, as the program says."""
        self._counted = _Counted(epoch, True)

    def begin(self, epoch: int) -> None:
        """From now on this epoch, which begins by itself, or goes on."""
        if epoch != self._counted.epoch:
            self._counted = _Counted(epoch, False)

    def next(self, positions: torch.Tensor) -> tuple[int, int]:
        """The place of the batch of the seeds at these positions, int ``[n]``, that is made now."""
        counted = self._counted
        if len(counted.times) >= _MAX_COUNTED:
            # Of several threads that find it full, each begins a table of its own; all but one of these are dropped.
            fill, fills = next(counted.fills), counted.fills
            counted = self._counted = _Counted(counted.epoch, counted.is_chosen, fill, fills)
        index = batch_index(positions)
        times = next(counted.times.setdefault(index, itertools.count()))
        worker = get_worker_info()
        seed = 0 if worker is None or counted.is_chosen else worker.seed
        return counted.epoch, another_index(index, counted.fill, times, seed)


def places_after(epoch: int, index: int) -> Iterator[tuple[int, int]]:
    """The place of a batch, and then others that follow from it."""
    return ((epoch, another_index(index, times)) for times in itertools.count())


def another_index(index: int, *marks: int) -> int:
    """The index itself where all marks are 0, else one that follows from it and them, below 2^63."""
    return batch_index(torch.tensor([index, *marks])) if any(marks) else index

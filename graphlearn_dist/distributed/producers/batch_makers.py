"""Which of a loader's servers makes which of its batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ...sampler.epochs.schedule import BatchIndices, BatchShare


class BatchMakers:
    """Who makes each batch of one run: a server out of several, named by its place among them.

    Batches of any seeds are made in turn, a group at a time. Of batches of near seeds each is made by a server that
    holds the partition which owns the most of their seeds; where several do, by them in turn, and where none does, by
    all in turn.

    Args:
        indices: the batches of the run.
        partitions: of each server, the partition that it holds.
        owners: of batches of near seeds, by turn, the partition that owns the most of their seeds; else empty.
        group: batches of a group, see ``BatchShare``; each of them follows the one before, or of near seeds, the one
            before of those that the same server makes.
    """

    def __init__(
        self, indices: BatchIndices, partitions: Sequence[int], owners: Sequence[int] = (), group: int = 1
    ) -> None:
        self._indices, self._num_batches = indices, len(indices)
        self._count = len(partitions)
        self._makers: list[int] | None = None
        self._positions: list[list[int]] = []
        self._group = group
        if owners and self._count > 1:
            self._makers = _by_owner(indices, partitions, owners)
            self._positions = [[] for _ in partitions]
            for position, maker in enumerate(self._makers):
                self._positions[maker].append(position)

    @property
    def busy(self) -> list[int]:
        """Those who make any of the batches; the first where there are none."""
        return [place for place in range(self._count) if self.next_of(place, 0) < self._num_batches] or [0]

    def group_of(self, position: int) -> Sequence[int]:
        """Positions of a group from one on: how many others of the run come before each."""
        if self._makers is None:
            return range(position, min((position // self._group + 1) * self._group, self._num_batches))
        own = self._positions[self._makers[position]]
        at = bisect_left(own, position)
        return own[at : (at // self._group + 1) * self._group]

    def maker_of(self, position: int) -> int:
        """Who makes the batch that this many others of the run come before."""
        return position // self._group % self._count if self._makers is None else self._makers[position]

    def share_of(self, place: int, position: int = 0) -> BatchShare:
        """The batches that one of them makes, from a position of the run on."""
        if self._makers is None:
            return BatchShare(self._indices, self._group, place, self._count, position)
        own = self._positions[place]
        return BatchShare(BatchIndices.of(self._indices[p] for p in own), self._group, begin=bisect_left(own, position))

    def next_of(self, place: int, position: int) -> int:
        """The first position, from one on, whose batch one of them makes; the end of the run where there is none."""
        if self._makers is not None:
            own = self._positions[place]
            at = bisect_left(own, position)
            return own[at] if at < len(own) else self._num_batches
        group = position // self._group
        ahead = (place - group) % self._count
        return min(position if ahead == 0 else (group + ahead) * self._group, self._num_batches)


def _by_owner(indices: BatchIndices, partitions: Sequence[int], owners: Sequence[int]) -> list[int]:
    holders: dict[int, list[int]] = {owner: [] for owner in owners}
    for place, partition in enumerate(partitions):
        holders.setdefault(partition, []).append(place)
    everyone = list(range(len(partitions)))
    turns = dict.fromkeys(holders, 0)
    makers = []
    for index in indices:
        owner = owners[index % len(owners)]
        able = holders[owner] or everyone
        makers.append(able[turns[owner] % len(able)])
        turns[owner] += 1
    return makers

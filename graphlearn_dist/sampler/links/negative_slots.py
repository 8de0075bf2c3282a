"""Slots for negatives, filled in rounds: what is drawn for each, and which of them find nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import torch

from ... import _C
from ...core import to_tensor
from .negative_sampling import NodeWeights

AsyncHasEdge = Callable[[torch.Tensor, torch.Tensor], Awaitable[torch.Tensor]]
"""(sources int64 [n], targets int64 [n]), global ids, to bool [n]: whether there is an edge. Answered by whoever owns
the sources or targets."""

AsyncNodeTimes = Callable[[torch.Tensor], Awaitable[torch.Tensor]]
"""Global ids of one node type, int64 [n], to their times, int64 [n]."""


@dataclass(frozen=True)
class TimeLimit:
    """Nodes that are drawn for one end of negatives must not be later than their links.

    Attributes:
        times_of: the times of such nodes.
        earliest: the node of the least time; of several, the one of the least id.
        limits: int64 ``[count]``, the time of the link that each slot belongs to.
    """

    times_of: AsyncNodeTimes
    earliest: int
    limits: torch.Tensor

    async def are_late(self, nodes: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """bool ``[n]``: whether the nodes drawn for some slots are later than those allow."""
        return await self.times_of(nodes) > self.limits[slots]


@dataclass(frozen=True)
class DrawnEnd:
    """Sources or targets that are drawn, from the nodes of one type.

    Attributes:
        num_nodes: nodes are below this; at least 1 where there are slots.
        weights: of the nodes; None for nodes that are all alike.
        limit: of their times; None where any node may be drawn.
        stride, first: draw ``d`` of a batch is a function of its key and of ``stride * d + first``.
    """

    num_nodes: int
    weights: NodeWeights | None
    limit: TimeLimit | None
    stride: int = 1
    first: int = 0

    def draw(self, key: int, numbers: torch.Tensor) -> torch.Tensor:
        """The nodes of some draws, int64 ``[n]``."""
        positions = self.stride * numbers + self.first
        if self.weights is None:
            return to_tensor(_C.random_ids(key, positions, self.num_nodes))
        return to_tensor(_C.random_ids(key, positions, self.num_nodes, self.weights.weights, self.weights.sums))


@dataclass(frozen=True)
class NegativeSlots:
    """The negatives that one batch wants.

    Attributes:
        count: how many.
        key: of all draws; slot ``i`` in round ``r`` takes draw ``r * count + i``.
        trials: rounds, at least 1.
        strict: no negative is an edge.
        sources: how they are drawn; or those given, int64 ``[count]``.
        targets: how they are drawn.
    """

    count: int
    key: int
    trials: int
    strict: bool
    sources: DrawnEnd | torch.Tensor
    targets: DrawnEnd


@dataclass(frozen=True)
class FilledSlots:
    """What was drawn.

    Attributes:
        sources: int64 ``[count]``.
        targets: int64 ``[count]``.
        open: int64 ``[n]``, ascending: the slots of strict negatives that found none. What stands there means nothing.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    open: torch.Tensor


FillSlots = Callable[[NegativeSlots], Awaitable[FilledSlots]]


class _End:
    """Sources or targets under way: the nodes of all slots, and the slots to draw again."""

    def __init__(self, slots: NegativeSlots, end: DrawnEnd) -> None:
        self.nodes = torch.empty(slots.count, dtype=torch.int64)
        self.is_open = torch.ones(slots.count, dtype=torch.bool)
        self._key = slots.key
        self._end = end

    async def draw(self, slots: torch.Tensor, offset: int) -> None:
        """Draws for some slots, those that are open; a node that is too late leaves its slot open."""
        slots, limit = slots[self.is_open[slots]], self._end.limit
        self.nodes[slots] = nodes = self._end.draw(self._key, offset + slots)
        self.is_open[slots] = False
        if limit is not None and slots.numel() > 0:
            self.is_open[slots] = await limit.are_late(nodes, slots)

    def close(self, slots: torch.Tensor) -> None:
        """Gives some slots, where they are open, the earliest node, as PyG does."""
        if self._end.limit is not None:
            self.nodes[slots[self.is_open[slots]]] = self._end.limit.earliest


async def fill_by_asking(wanted: NegativeSlots, has_edge: AsyncHasEdge | None) -> FilledSlots:
    """Fills slots in rounds, each over all that are open, on the host.

    An end that is too late is drawn again alone, of a pair that is an edge each end that is drawn. Where negatives need
    not be strict, ends that are too late in all rounds get the earliest node.

    Args:
        wanted: the slots.
        has_edge: who knows the edges; needed for strict negatives alone.
    """
    given = wanted.sources if isinstance(wanted.sources, torch.Tensor) else None
    targets = _End(wanted, wanted.targets)
    ends = [targets] if isinstance(wanted.sources, torch.Tensor) else [_End(wanted, wanted.sources), targets]
    sources = ends[0].nodes if given is None else given
    slots = torch.arange(wanted.count)
    for trial in range(wanted.trials):
        for end in ends:
            await end.draw(slots, trial * wanted.count)
        if wanted.strict and has_edge is not None:
            ready = slots[~_are_open(ends, slots)]
            edges = ready[await has_edge(sources[ready], targets.nodes[ready])] if ready.numel() else ready
            for end in ends:
                end.is_open[edges] = True
        slots = slots[_are_open(ends, slots)]
        if slots.numel() == 0:
            break
    if not wanted.strict:
        for end in ends:
            end.close(slots)
        slots = slots[:0]
    return FilledSlots(sources, targets.nodes, slots)


def _are_open(ends: list[_End], slots: torch.Tensor) -> torch.Tensor:
    return torch.stack([end.is_open[slots] for end in ends]).any(0)

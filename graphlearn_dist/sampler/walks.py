"""Random walks: the same code whether the graph is here or with several owners, asked once a step for all walks.

A walk is a function of (data set, arguments, seed, epoch, its number), and of nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..core import check_index_tensor, to_tensor
from ..data.dataset import Dataset
from ..data.schema import GraphSchema
from ..errors import InvalidArgumentError
from ..typing import EdgeType
from ..utils.shown import shown
from ..utils.values import check_seed, is_number, is_whole
from .inputs import edge_type_index
from .plan import Draw, SamplingPlan, build_plan
from .tasks import DrawnNeighbors, HostGraph, NeighborDraw

ENDED = -1
"""In the place of a node: the walk ended before."""

_DRAWS_OF_WALKS = 1 << 62  # in the place of a batch's index, so that no walk has the draws of a batch
_ENDS, _ACCEPTS, _KIND, _RANK = -1, -2, -3, -4  # in the place of an edge type
_MOST_WALKS = 1 << 60
_UNITS = 1 << 53  # of a random number in [0, 1)
_FIRST_TRIES, _MORE_TRIES, _MOST_TRIES = 8, 4, 1 << 13
_ROUNDS = 2  # of proposals, before whole rows are looked at
_MOST_NEIGHBORS = 1 << 22  # of whole rows that are looked at together
_EXTREME, _MOST_UNEQUAL = 1e4, 1e4


@dataclass(frozen=True)
class WalkSettings:
    """How walks go, and how many steps; see ``random_walk``.

    Attributes:
        length: steps.
        metapath: edge types, over and over; None where there is one.
        p: node2vec's return parameter.
        q: node2vec's in-out parameter.
        restart_prob: chance that a walk ends before each step.
        with_weight: step by edge weight, along the types that have weights.
        seed: of all draws.
        epoch: likewise.
        restart_every: before which steps a walk may end: 0 for all, else after so many steps, after twice as many, ….
    """

    length: int
    metapath: tuple[EdgeType, ...] | None = None
    p: float = 1.0
    q: float = 1.0
    restart_prob: float = 0.0
    with_weight: bool = False
    seed: int = 0
    epoch: int = 0
    restart_every: int = 0

    def __post_init__(self) -> None:
        if not is_whole(self.length) or self.length < 0:
            raise InvalidArgumentError(f"length: expected a number of steps, got {shown(self.length)}")
        for name in ("p", "q"):
            value = getattr(self, name)
            if not is_number(value) or not 1 / _EXTREME <= value <= _EXTREME:
                raise InvalidArgumentError(
                    f"{name}: expected a number from {1 / _EXTREME} to {_EXTREME:.0f}, got {shown(value)}"
                )
        if not is_number(self.restart_prob) or not 0 <= self.restart_prob <= 1:
            raise InvalidArgumentError(f"restart_prob: expected a number in [0, 1], got {shown(self.restart_prob)}")
        check_seed("seed", self.seed)
        check_seed("epoch", self.epoch)
        if self.with_weight and max(self.biases) > _MOST_UNEQUAL * min(self.biases):
            raise InvalidArgumentError(
                f"p, q: expected chances by weight (1/p, 1 and 1/q) that differ by a factor of {_MOST_UNEQUAL:.0f} at "
                f"most, got {self.p} and {self.q}"
            )

    @property
    def biases(self) -> tuple[float, float, float]:
        """Of a step back, to a neighbor of the node before, and to any other node."""
        return 1 / self.p, 1.0, 1 / self.q

    @property
    def is_second_order(self) -> bool:
        """Whether a step depends on the node before."""
        return self.p != 1 or self.q != 1


def walk_plan(data: Dataset, with_weight: bool, seed: int) -> SamplingPlan:
    """How walks draw: one neighbor a step, whatever its time.

    Raises:
        InvalidArgumentError: weights are asked for, and no edge type has any.
    """
    graphs = data.graphs()
    weighted = [with_weight and graphs[edge_type].topo.edge_weights is not None for edge_type in data.schema.edge_types]
    if with_weight and not any(weighted):
        raise InvalidArgumentError("with_weight: expected edge weights in the data set, which has none")
    draws = [Draw("weighted" if has_weights else "uniform", replace=True) for has_weights in weighted]
    return build_plan(data.schema, None, optional=True, draws=draws, seed=seed)


def _edge_types(schema: GraphSchema, metapath: Sequence[EdgeType] | None, settings: WalkSettings) -> list[int]:
    """The edge type of each step."""
    if metapath is None:
        if len(schema.edge_types) != 1:
            raise InvalidArgumentError(f"metapath: expected edge types of {list(schema.edge_types)}, got None")
        path = [0]
    else:
        path = [edge_type_index(schema, edge_type, "metapath") for edge_type in metapath]
    if settings.is_second_order and len(set(path)) != 1:
        raise InvalidArgumentError(f"p, q: expected 1 along several edge types, got {settings.p} and {settings.q}")
    steps = [path[step % len(path)] for step in range(settings.length)] if path else []
    if len(steps) != settings.length:
        raise InvalidArgumentError("metapath: expected at least one edge type, got none")
    for before, after in itertools.pairwise(steps):
        (_, reached), (left, _) = schema.edge_specs[before], schema.edge_specs[after]
        if reached != left:
            raise InvalidArgumentError(
                f"metapath: expected each type to go on where the one before ends, got {schema.edge_types[after]} "
                f"after {schema.edge_types[before]}, sampled by {schema.edge_dir}-neighbors"
            )
    if settings.is_second_order and steps and len(set(schema.edge_specs[steps[0]])) != 1:
        raise InvalidArgumentError("p, q: expected 1 along edges from one node type to another")
    return steps


class RandomWalks:
    """Walks through one graph; see ``random_walk``.

    Args:
        graph: answers for the graph.
        settings: how walks go.

    Raises:
        InvalidArgumentError: edge types that are not there or do not follow each other, or settings that contradict
            each other.
    """

    def __init__(self, graph: HostGraph, settings: WalkSettings) -> None:
        self._graph, self._settings = graph, settings
        self._schema = graph.plan.schema
        self._steps = _edge_types(self._schema, settings.metapath, settings)

    async def walk(self, seeds: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Nodes int64 ``[n, length + 1]`` of the walks from seeds int64 ``[n]``, the first of which has this number."""
        if not is_whole(first) or not 0 <= first <= _MOST_WALKS - len(seeds):
            raise InvalidArgumentError(f"first: expected the number of a walk, 0 <= first < 2**60, got {shown(first)}")
        if self._steps:
            count = self._schema.num_nodes[self._schema.edge_specs[self._steps[0]][0]]
            seeds = check_index_tensor(seeds, "seeds", num_ids=count, what="node id").long()
        numbers, going = torch.arange(first, first + len(seeds)), torch.arange(len(seeds))
        columns = [seeds.long()]
        for step, edge_type in enumerate(self._steps):
            going = going[~self._ends(step, numbers[going])]
            now, number = columns[-1][going], numbers[going]
            reached = torch.full_like(now, ENDED)
            if step and self._settings.is_second_order:
                reached = await self._second_order(step, edge_type, now, columns[-2][going], number)
            elif len(going):
                counts, neighbors = await self._draw(step, 0, edge_type, now, 1, number)
                reached[counts > 0] = neighbors
            columns.append(torch.full_like(seeds, ENDED).index_put_((going,), reached))
            going = going[reached != ENDED]
        return torch.stack(columns, dim=1)

    def _key(self, step: int, kind: int, trial: int = 0) -> int:
        settings = self._settings
        return int(_C.draw_key(settings.seed, settings.epoch, _DRAWS_OF_WALKS + trial, step, kind))

    def _ends(self, step: int, numbers: torch.Tensor) -> torch.Tensor:
        """bool ``[n]``: which walks end before a step."""
        settings = self._settings
        may_end = step > 0 and step % settings.restart_every == 0 if settings.restart_every else True
        if not settings.restart_prob or not may_end:
            return torch.zeros(len(numbers), dtype=torch.bool)
        return _random(self._key(step, _ENDS), numbers) < settings.restart_prob

    async def _draw(
        self, step: int, trial: int, edge_type: int, ids: torch.Tensor, count: int, numbers: torch.Tensor
    ) -> DrawnNeighbors:
        key = self._key(step, edge_type, trial)
        (drawn,) = await self._graph.draw_neighbors([NeighborDraw(edge_type, ids, count, key, numbers)])
        return drawn

    async def _second_order(
        self, step: int, edge_type: int, now: torch.Tensor, before: torch.Tensor, numbers: torch.Tensor
    ) -> torch.Tensor:
        """The next nodes int64 ``[n]`` of node2vec (Grover, Leskovec, KDD 2016, section 3.2).

        By rejection (KnightKing: Yang et al., SOSP 2019): a first-order step is proposed, and taken with its bias over
        the largest one. Several are proposed at once, so that a step seldom takes more than two rounds of queries; the
        first that is taken counts. Only where it decides is the owner of the node before asked for the edge.
        """
        settings = self._settings
        biases = 1 / settings.p, 1.0, 1 / settings.q
        home, near, far = (bias / max(biases) for bias in biases)
        found = torch.full_like(now, ENDED)
        open_, tries, trial = torch.arange(len(now)), _FIRST_TRIES, 0
        while len(open_) and (settings.with_weight or trial < _ROUNDS):
            counts, drawn = await self._draw(step, trial, edge_type, now[open_], tries, numbers[open_])
            open_ = open_[counts > 0]  # the others have no neighbors
            proposed = drawn.view(-1, tries)
            places = numbers[open_, None] * tries + torch.arange(tries)
            luck = _random(self._key(step, _ACCEPTS, trial), places.view(-1)).view(-1, tries)
            is_home = proposed == before[open_, None]
            taken = torch.where(is_home, luck < home, luck < min(near, far))
            unsure = ~is_home & ~taken & (luck < max(near, far))
            unsure &= taken.cumsum(dim=1) == 0  # behind one that is taken, nothing is decided
            if bool(unsure.any()):
                row, col = unsure.nonzero(as_tuple=True)
                has_edge = await self._has_edges(edge_type, before[open_[row]], proposed[row, col])
                taken[row, col] = has_edge if near > far else ~has_edge
            is_done = taken.any(dim=1)
            found[open_[is_done]] = proposed[is_done, taken[is_done].int().argmax(dim=1)]
            open_, tries, trial = open_[~is_done], min(_MORE_TRIES * tries, _MOST_TRIES), trial + 1
        if len(open_):
            degrees = await self._graph.degrees(edge_type, now[open_])
            for some in torch.split(open_, _lengths_within(degrees, _MOST_NEIGHBORS)):
                found[some] = await self._from_rows(step, edge_type, now[some], before[some], numbers[some])
        return found

    async def _from_rows(
        self, step: int, edge_type: int, now: torch.Tensor, before: torch.Tensor, numbers: torch.Tensor
    ) -> torch.Tensor:
        """The next nodes int64 ``[n]`` of node2vec, of walks at nodes that have neighbors, drawn from all of these.

        A walk's kind of step is drawn by how many neighbors there are of each kind, and one of these as the next node:
        numbers of its own row alone, which do not depend on the other walks.
        """
        counts, neighbors = await self._draw(step, 0, edge_type, now, -1, numbers)
        walks = torch.arange(len(now)).repeat_interleave(counts)
        kinds = torch.zeros_like(neighbors)  # back, near, far
        away = (neighbors != before[walks]).nonzero().view(-1)
        kinds[away] = torch.where(await self._has_edges(edge_type, before[walks[away]], neighbors[away]), 1, 2)
        rows = 3 * walks + kinds
        sizes = torch.bincount(rows, minlength=3 * len(now)).view(-1, 3)
        shares = (sizes * torch.tensor(self._settings.biases, dtype=torch.float64)).cumsum(dim=1)
        luck = _random(self._key(step, _KIND), numbers) * shares[:, 2]
        last = 2 - (sizes > 0).flip(1).int().argmax(dim=1)
        kind = torch.minimum((shares <= luck[:, None]).sum(dim=1), last)  # rounding may have reached the whole share
        row = 3 * torch.arange(len(now)) + kind
        size = sizes.view(-1)[row]
        rank = torch.minimum((_random(self._key(step, _RANK), numbers) * size).long(), size - 1)
        first = sizes.view(-1).cumsum(dim=0)[row] - size
        return neighbors[rows.argsort(stable=True)[first + rank]]

    async def _has_edges(self, edge_type: int, nodes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """bool ``[n]``: whether a walk could go from each node to the other."""
        ends = (nodes, others) if self._schema.edge_dir == "out" else (others, nodes)
        return await self._graph.has_edges(edge_type, *ends)


def _lengths_within(sizes: torch.Tensor, most: int) -> list[int]:
    """Lengths of consecutive pieces whose sizes add up to so much at most, or that have one item."""
    lengths, total = [0], 0
    for size in sizes.tolist():
        if lengths[-1] and total + size > most:
            lengths.append(0)
            total = 0
        lengths[-1] += 1
        total += size
    return lengths


def _random(key: int, places: torch.Tensor) -> torch.Tensor:
    """float64 ``[n]`` in [0, 1), each a function of the key and its place."""
    drawn: Any = to_tensor(_C.random_ids(key, places.contiguous(), _UNITS))
    return drawn.double() / _UNITS  # type: ignore[no-any-return]

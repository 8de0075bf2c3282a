"""The neighbors of a node that random walks from it visit most often, as PinSAGE has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..data.schema import GraphSchema
from ..errors import InvalidArgumentError
from ..typing import EdgeType
from ..utils.shown import shown
from ..utils.values import check_seed, is_number, is_whole
from .inputs import edge_type_index
from .tasks import HostGraph
from .walks import ENDED, RandomWalks, WalkSettings

_WALKS_AT_ONCE = 1 << 19


class ImportanceOutput(NamedTuple):
    """The neighbors of some seeds.

    Attributes:
        nodes: int64 ``[total]``, those of the first seed, then of the second, and so on; each seed's by visits, the
            most first, and by id where these are equal.
        counts: int64 ``[num_seeds]``, how many each seed has.
        visits: int64 ``[total]``, how often each was visited.
    """

    nodes: torch.Tensor
    counts: torch.Tensor
    visits: torch.Tensor


@dataclass(frozen=True)
class ImportanceSettings:
    """How neighbors are found; see ``distributed.importance_neighbors``.

    Attributes:
        num_neighbors: at most so many for each seed.
        num_random_walks: from each seed.
        num_traversals: how often a walk goes through the metapath.
        termination_prob: chance that a walk ends before each traversal but the first.
        metapath: edge types that lead from a node type back to it; None where there is one.
        with_weight: step by edge weight.
        seed: of all draws.
        epoch: likewise.
    """

    num_neighbors: int
    num_random_walks: int
    num_traversals: int
    termination_prob: float = 0.5
    metapath: tuple[EdgeType, ...] | None = None
    with_weight: bool = False
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        for name in ("num_neighbors", "num_random_walks", "num_traversals"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise InvalidArgumentError(f"{name}: expected an integer of at least 1, got {shown(value)}")
        if self.metapath is not None and not self.metapath:
            raise InvalidArgumentError("metapath: expected at least one edge type, got none")
        if not is_number(self.termination_prob) or not 0 <= self.termination_prob <= 1:
            raise InvalidArgumentError(
                f"termination_prob: expected a number in [0, 1], got {shown(self.termination_prob)}"
            )
        check_seed("seed", self.seed)
        check_seed("epoch", self.epoch)

    @property
    def hops(self) -> int:
        """Steps of a traversal."""
        return len(self.metapath) if self.metapath is not None else 1

    def walk_settings(self) -> WalkSettings:
        """Those of its walks."""
        return WalkSettings(
            self.hops * self.num_traversals,
            self.metapath,
            restart_prob=self.termination_prob,
            restart_every=self.hops,
            with_weight=self.with_weight,
            seed=self.seed,
            epoch=self.epoch,
        )


async def importance_of(
    graph: HostGraph, seeds: torch.Tensor, settings: ImportanceSettings, first: int = 0
) -> ImportanceOutput:
    """The neighbors of seeds int64 ``[n]``, the first of which has this number.

    By Ying et al. ("Graph Convolutional Neural Networks for Web-Scale Recommender Systems", KDD 2018, section 3.2):
    those with the highest visit counts of walks from the seed. A seed that a traversal comes back to counts as well.

    Raises:
        InvalidArgumentError: edge types that are not there, do not follow each other or do not lead back.
        UnknownIdError: a seed is outside the graph.
    """
    walks, per_seed = RandomWalks(graph, settings.walk_settings()), settings.num_random_walks
    num_nodes = _num_nodes(graph.plan.schema, settings.metapath)
    found, number = [], first
    for block in torch.split(seeds, max(_WALKS_AT_ONCE // per_seed, 1)):
        paths = await walks.walk(block.repeat_interleave(per_seed), number * per_seed)
        ends = paths[:, settings.hops :: settings.hops].reshape(len(block), per_seed * settings.num_traversals)
        found.append(_most_visited(ends, num_nodes, settings.num_neighbors))
        number += len(block)
    return ImportanceOutput(*map(torch.cat, zip(*found, strict=True)))


def _num_nodes(schema: GraphSchema, metapath: tuple[EdgeType, ...] | None) -> int:
    """How many nodes there are of the type from which a metapath leads, and to which it has to lead back."""
    path = [0] if metapath is None else [edge_type_index(schema, edge_type, "metapath") for edge_type in metapath]
    (begin, _), (_, end) = schema.edge_specs[path[0]], schema.edge_specs[path[-1]]
    if begin != end:
        raise InvalidArgumentError(
            f"metapath: expected edge types that lead back to {schema.node_types[begin]!r}, got "
            f"{list(metapath or ())}, which lead to {schema.node_types[end]!r}"
        )
    return int(schema.num_nodes[begin])


def _most_visited(ends: torch.Tensor, num_nodes: int, most: int) -> ImportanceOutput:
    """Of each row of nodes int64 ``[n, k]``, ``ENDED`` for none, those that it has most often."""
    rows = torch.arange(len(ends)).repeat_interleave(ends.size(1))
    ends = ends.reshape(-1)
    there = ends != ENDED
    pairs, visits = torch.unique(rows[there] * num_nodes + ends[there], return_counts=True)
    row = pairs // max(num_nodes, 1)
    top = int(visits.max()) if len(visits) else 0
    order = (row * (top + 1) + top - visits).argsort(stable=True)  # pairs of a row are in the order of their nodes
    row = row[order]
    counts = torch.bincount(row, minlength=int(rows[-1]) + 1 if len(rows) else 0)
    rank = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
    chosen = order[rank < most]
    return ImportanceOutput(pairs[chosen] % max(num_nodes, 1), counts.clamp(max=most), visits[chosen])

"""What a sampling request resolves to, once: types as integers, fan-outs per hop and edge type."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from .. import _C
from ..data.graph import Graph
from ..data.schema import GraphSchema
from ..errors import InvalidArgumentError
from ..utils.shown import shown
from .strategies import METHODS, TIME_RULES

UNBOUNDED = -1
MAX_FANOUT = 2**31 - 1  # the core's kMaxFanout: sums over a frontier must not wrap around
_LARGEST_BOUND = 1 << 40


@dataclass(frozen=True)
class Draw:
    """How neighbors along one edge type are drawn.

    Attributes:
        method: a name of ``strategies.METHODS``.
        replace: draw with replacement.
        times: ``"ignore"``, ``"before"`` (no edges later than the seed's time) or ``"latest"`` (the latest of those).
    """

    method: str = "uniform"
    replace: bool = False
    times: str = "ignore"

    def __post_init__(self) -> None:
        if self.method not in METHODS or self.times not in TIME_RULES:
            raise InvalidArgumentError(
                f"method, times: expected one of {list(METHODS)} and one of {list(TIME_RULES)}, got {self}"
            )

    @property
    def native(self) -> _C.DrawMethod:
        """The same for the core."""
        return _C.DrawMethod(self.method, self.replace, TIME_RULES[self.times])

    @property
    def reads_weights(self) -> bool:
        """Whether the graph must have weights."""
        return METHODS[self.method].reads_weights

    def handler(self, graph: Graph) -> _C.Csr:
        """The native graph, with weights where this draw reads them."""
        return graph.weighted_handler if self.reads_weights else graph.graph_handler


@dataclass(frozen=True)
class SamplingPlan:
    """How every batch of a loader is sampled.

    Attributes:
        schema: types and counts of the data set.
        fanouts: ``[hop][edge type]``; -1 takes all neighbors, 0 skips the type in that hop.
        draws: by edge type, how its neighbors are drawn.
        disjoint: each seed grows a tree of its own.
        with_edge_ids: batches carry edge ids.
        seed: seed of all draws.
        likely_fanouts: what says in place of ``fanouts`` how likely nodes are to be in a batch; None where these do.
    """

    schema: GraphSchema
    fanouts: tuple[tuple[int, ...], ...]
    draws: tuple[Draw, ...]
    disjoint: bool = False
    with_edge_ids: bool = False
    seed: int = 0
    likely_fanouts: tuple[tuple[int, ...], ...] | None = None

    @property
    def expected_fanouts(self) -> tuple[tuple[int, ...], ...]:
        """``[hop][edge type]``, by which it is estimated how likely nodes are to be in a batch."""
        return self.fanouts if self.likely_fanouts is None else self.likely_fanouts

    @property
    def num_hops(self) -> int:
        return len(self.fanouts)

    def max_new_nodes(self, num_seeds: int) -> int:
        """A bound on the nodes that hops may add to ``num_seeds`` seeds; -1 where only the graph bounds them."""
        frontier, total = num_seeds, 0
        for hop in self.fanouts:
            if min(hop, default=0) < 0:
                return UNBOUNDED
            frontier *= sum(hop)
            total += frontier
            if total > _LARGEST_BOUND:
                return UNBOUNDED
        return total

    @functools.cached_property
    def native_draws(self) -> list[_C.DrawMethod]:
        """``draws`` for the core."""
        return [draw.native for draw in self.draws]


def build_plan(
    schema: GraphSchema,
    num_neighbors: Any,
    *,
    optional: bool = False,
    draws: Sequence[Draw] | None = None,
    disjoint: bool = False,
    with_edge_ids: bool = False,
    seed: int = 0,
) -> SamplingPlan:
    """Resolves ``num_neighbors`` (a list by hop, or a dict of such lists by edge type) against a schema.

    ``draws`` is by edge type of the schema; uniform without replacement unless given. Where fan-outs are ``optional``,
    None means no hop at all.

    Raises:
        InvalidArgumentError: a fan-out is below -1, lists differ in length, or an edge type is unknown, or has no
            fan-outs.
    """
    per_type = {} if optional and num_neighbors is None else _lists_by_edge_type(schema, num_neighbors)
    lengths = {len(hops) for hops in per_type.values()}
    if len(lengths) > 1:
        raise InvalidArgumentError(f"num_neighbors: expected as many hops for every edge type, got {sorted(lengths)}")
    num_hops = lengths.pop() if lengths else 0
    fanouts = tuple(
        tuple(per_type[edge_type][hop] if edge_type in per_type else 0 for edge_type in schema.edge_types)
        for hop in range(num_hops)
    )
    by_type = (Draw(),) * len(schema.edge_types) if draws is None else tuple(draws)
    return SamplingPlan(schema, fanouts, by_type, disjoint, with_edge_ids, seed)


def _lists_by_edge_type(schema: GraphSchema, num_neighbors: Any) -> dict[Any, list[int]]:
    given = plain_num_neighbors(num_neighbors)
    if not isinstance(given, Mapping):
        return {edge_type: _checked(given) for edge_type in schema.edge_types}
    by_type = {edge_type: _checked(hops) for edge_type, hops in given.items()}
    default = None if schema.is_homogeneous else by_type.pop(None, None)
    for edge_type in by_type:
        if edge_type not in schema.edge_types:
            known = "no named types" if schema.is_homogeneous else ", ".join(map(str, schema.edge_types))
            raise InvalidArgumentError(f"num_neighbors: unknown edge type {edge_type!r}; the data set has {known}")
    missing = [edge_type for edge_type in schema.edge_types if edge_type not in by_type]
    if missing and default is None:
        raise InvalidArgumentError(
            f"num_neighbors: expected fan-outs for every edge type, or a default under the key None, got none for "
            f"{missing[0]!r}; [0, ...] samples no neighbors along a type"
        )
    return {edge_type: by_type.get(edge_type, default or []) for edge_type in schema.edge_types}


def plain_num_neighbors(num_neighbors: Any) -> Any:
    """Fan-outs as a list, or a dict by edge type in which None stands for all types that are not named.

    PyG's ``NumNeighbors`` says the same by its ``values`` and its ``default``.
    """
    if num_neighbors is None or isinstance(num_neighbors, (Mapping, Sequence)):
        return num_neighbors
    values = getattr(num_neighbors, "values", None)
    if not isinstance(values, Mapping):
        return num_neighbors if values is None or callable(values) else values
    by_type = {key.to_tuple() if hasattr(key, "to_tuple") else key: list(hops) for key, hops in values.items()}
    default = getattr(num_neighbors, "default", None)
    return by_type if default is None else {**by_type, None: list(default)}


def _checked(hops: Any) -> list[int]:
    if not isinstance(hops, Sequence) or isinstance(hops, str):
        raise InvalidArgumentError(f"num_neighbors: expected a list with one fan-out per hop, got {shown(hops)}")
    if not hops:
        raise InvalidArgumentError("num_neighbors: expected at least one hop, got an empty list")
    for fanout in hops:
        if not isinstance(fanout, Integral) or isinstance(fanout, bool) or int(fanout) < UNBOUNDED:
            raise InvalidArgumentError(
                f"num_neighbors: expected each fan-out to be -1 (all neighbors), 0 (none) or more, got {shown(fanout)}"
            )
        if int(fanout) > MAX_FANOUT:
            raise InvalidArgumentError(
                f"num_neighbors: expected each fan-out to be at most {MAX_FANOUT} (-1 takes all), got {fanout}"
            )
    return list(map(int, hops))


def check_num_neighbors(num_neighbors: Any, *, optional: bool = False) -> Any:
    """Fan-outs as lists, checked as far as that goes without a data set; None only where it is allowed."""
    if optional and num_neighbors is None:
        return None
    num_neighbors = plain_num_neighbors(num_neighbors)
    if isinstance(num_neighbors, Mapping):
        return {key: _checked(hops) for key, hops in num_neighbors.items()}
    return _checked(num_neighbors)

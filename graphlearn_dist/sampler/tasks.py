"""What is sampled: nodes, links or subgraphs. Each knows a batch's seeds, and what the batch holds besides nodes.

A task asks a ``GraphAccess`` for everything that needs the graph, and does not know whether that is in this process.
``hgt`` has one more.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import torch

from .. import _C
from ..core import stack_pair, to_tensor
from ..data.schema import GraphSchema
from ..errors import InvalidArgumentError
from ..messages import LinkLabels, Subgraph
from .base import EdgeSamplerInput, NodeSamplerInput, SamplingConfig
from .inputs import edge_type_index
from .links.exclusion import without_edges
from .links.negative_pool import NegativePool, negative_key
from .links.negative_slots import FilledSlots, NegativeSlots, TimeLimit
from .plan import SamplingPlan

_HARD_HOP = (1 << 31) - 3  # the draws of hard negatives have a key of their own: no hop has this number


@dataclass(frozen=True)
class SeedList:
    """Seeds of one node type.

    Attributes:
        node_type: its number.
        ids: int ``[n]``, global.
        times: int64 ``[n]``, or None.
        unique: collapse nodes that stand in the batch already; not in disjoint batches.
    """

    node_type: int
    ids: torch.Tensor
    times: torch.Tensor | None = None
    unique: bool = False


@dataclass(frozen=True)
class NeighborDraw:
    """Neighbors of nodes that are drawn as the plan draws them.

    Attributes:
        edge_type: number of the edge type along which they are drawn.
        ids: int64 ``[n]``, the nodes, global.
        fanout: of each, at most so many; -1: all.
        key: of the draws.
        trees: int64 ``[n]``; nodes of different trees have draws of their own. None: nodes that are the same have the
            same.
    """

    edge_type: int
    ids: torch.Tensor
    fanout: int
    key: int
    trees: torch.Tensor | None = None


# What was drawn: counts int64 [n], and neighbors int64 [sum], grouped by node in the order asked.
DrawnNeighbors: TypeAlias = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class InducedEdges:
    """Edges of one type between the nodes of a batch, grouped by the node they are edges of.

    Attributes:
        counts: int64 ``[num nodes of the seed type]``, edges of each of them.
        neighbors: int64 ``[sum of counts]``, local ids.
        edge_ids: int64 ``[sum of counts]``, global, or None.
    """

    counts: torch.Tensor
    neighbors: torch.Tensor
    edge_ids: torch.Tensor | None

    def edge_index(self) -> torch.Tensor:
        """int64 ``[2, sum of counts]``: the neighbors, and the local id of the node that each edge is one of."""
        if not self.counts.is_cuda:  # torch would wake its threads for that, however few edges there are
            return to_tensor(_C.pair_with_nodes(self.counts, self.neighbors))
        nodes = torch.repeat_interleave(self.counts, output_size=self.neighbors.numel())
        return stack_pair(self.neighbors, nodes)


# What a batch is sampled from: its seeds, and the epoch and index that name its draws.
NamedSeeds: TypeAlias = tuple[Sequence[SeedList], int, int]
# A sampled neighborhood, and by list of seeds their local ids, int64 [n].
Sampled: TypeAlias = tuple[Subgraph, tuple[torch.Tensor, ...]]


class GraphAccess(Protocol):
    """A graph that batches are made from, in this process or in several. All ids are global.

    Attributes:
        device: where the tensors of its batches lie.
    """

    device: torch.device

    async def sample(self, wanted: Sequence[NamedSeeds], *, leaves_edges: bool = False) -> list[Sampled]:
        """The sampled neighborhoods of the seeds of some batches; other processes are asked for all of them at once.

        ``leaves_edges``: edges may come unwritten (``Subgraph.unwritten``), to be written where they are wanted.
        """

    async def draw_neighbors(self, draws: Sequence[NeighborDraw]) -> list[DrawnNeighbors]:
        """What each draw gives; other processes are asked for all of them at once."""

    async def has_edges(self, edge_type: int, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """bool ``[n]``: whether there is an edge between each source and target (int64 ``[n]``)."""

    async def fill_negatives(self, edge_type: int, slots: NegativeSlots) -> FilledSlots:
        """Draws negatives of an edge type, as ``negative_slots.fill_by_asking`` does; they lie on ``device``."""

    def earliest_node(self, node_type: int) -> int | None:
        """The node of a type that came first (of several the one of the least id); None where they have no times."""

    async def node_times(self, node_type: int, ids: torch.Tensor) -> torch.Tensor:
        """int64 ``[n]``: the times of nodes (int64 ``[n]``) of a type that has them."""

    async def induced(self, nodes: tuple[torch.Tensor, ...]) -> tuple[InducedEdges, ...]:
        """By edge type, all edges between nodes (by node type int64 ``[n]``, distinct)."""


class HostGraph(GraphAccess, Protocol):
    """A graph that is not on a GPU.

    Attributes:
        plan: how neighbors are drawn.
    """

    plan: SamplingPlan

    async def degrees(self, edge_type: int, ids: torch.Tensor) -> torch.Tensor:
        """int64 ``[n]``: how many neighbors nodes (int64 ``[n]``) have."""


@dataclass(frozen=True)
class LinkEnds:
    """The links of a batch: positives, then negatives.

    Attributes:
        positives: the links.
        sources: int64 ``[num_sources]``, global ids.
        targets: int64 ``[num_targets]``, global ids.
        source_links: int64 ``[num_sources]``, the positive that each belongs to.
        target_links: int64 ``[num_targets]``, likewise.
    """

    positives: EdgeSamplerInput
    sources: torch.Tensor
    targets: torch.Tensor
    source_links: torch.Tensor
    target_links: torch.Tensor


@dataclass(frozen=True)
class BatchSeeds:
    """What a batch is sampled from.

    Attributes:
        lists: its seeds.
        ends: the links whose ends these are, or None.
    """

    lists: tuple[SeedList, ...]
    ends: LinkEnds | None = None


@dataclass(frozen=True)
class TaskResult:
    """A batch without the rows that are looked up for it; see ``messages.SampledBatch``."""

    subgraph: Subgraph
    seed_times: torch.Tensor | None = None
    links: LinkLabels | None = None
    mapping: torch.Tensor | None = None


class Task(Protocol):
    """What is sampled: how a batch begins before the neighborhood of its seeds is, and what it is afterwards.

    Attributes:
        seed_type: number of the seeds' node type.
        asks: whether it asks the graph for more than that neighborhood.
        reads_edges: whether it reads the edges of that neighborhood, or replaces them.
    """

    @property
    def seed_type(self) -> int: ...

    @property
    def asks(self) -> bool: ...

    @property
    def reads_edges(self) -> bool: ...

    async def begin(self, graph: GraphAccess, positions: torch.Tensor, *, epoch: int, index: int) -> BatchSeeds:
        """What the batch of some positions of the input (int64 ``[n]``) is sampled from."""

    async def finish(self, graph: GraphAccess, seeds: BatchSeeds, sampled: Sampled) -> TaskResult:
        """The batch."""


def seed_types_of(sampler_input: NodeSamplerInput | EdgeSamplerInput, schema: GraphSchema) -> list[int]:
    """Numbers of the node types that seeds have: one, or those of both ends of links."""
    if isinstance(sampler_input, NodeSamplerInput):
        return [schema.node_type_index(sampler_input.input_type, "input_nodes")]
    named = sampler_input.input_type
    ends = (None, None) if named is None else (named[0], named[2])
    return [schema.node_type_index(end, "edge_label_index") for end in ends]


class NodeTask:
    """Neighborhoods of nodes: seeds come first, each as often as it was asked for.

    With ``own_times``, the time of a seed is that of its node, looked up where it lies.
    """

    reads_edges = False

    def __init__(self, inputs: NodeSamplerInput, schema: GraphSchema, *, own_times: bool = False) -> None:
        self._inputs = inputs
        self.asks = own_times
        (self.seed_type,) = seed_types_of(inputs, schema)

    async def begin(self, graph: GraphAccess, positions: torch.Tensor, *, epoch: int, index: int) -> BatchSeeds:
        """See ``Task``."""
        nodes, times = self._inputs.node[positions], self._inputs.time
        if times is not None:
            times = times[positions]
        if self.asks:
            times = await graph.node_times(self.seed_type, nodes)
        return BatchSeeds((SeedList(self.seed_type, nodes, times),))

    async def finish(self, graph: GraphAccess, seeds: BatchSeeds, sampled: Sampled) -> TaskResult:
        """See ``Task``."""
        return TaskResult(sampled[0], seeds.lists[0].times)


async def with_induced_edges(graph: GraphAccess, sampled: Subgraph) -> Subgraph:
    """The nodes of a subgraph, each of which it has once, with all edges between them."""
    induced = await graph.induced(sampled.nodes)
    return replace(
        sampled,
        edge_index=tuple(edges.edge_index() for edges in induced),
        edge_ids=tuple(edges.edge_ids for edges in induced),
        num_sampled_edges=((),) * len(induced),  # they belong to no hop
    )


class SubgraphTask:
    """All edges between the sampled neighborhoods of nodes; each node stands in a batch once."""

    asks = True
    reads_edges = True

    def __init__(self, inputs: NodeSamplerInput, schema: GraphSchema) -> None:
        self._nodes = inputs.node
        (self.seed_type,) = seed_types_of(inputs, schema)

    async def begin(self, graph: GraphAccess, positions: torch.Tensor, *, epoch: int, index: int) -> BatchSeeds:
        """See ``Task``."""
        return BatchSeeds((SeedList(self.seed_type, self._nodes[positions], unique=True),))

    async def finish(self, graph: GraphAccess, seeds: BatchSeeds, sampled: Sampled) -> TaskResult:
        """See ``Task``."""
        subgraph, (mapping,) = sampled
        return TaskResult(await with_induced_edges(graph, subgraph), mapping=mapping)


class LinkTask:
    """Neighborhoods of both ends of links, and of negatives that are drawn for them.

    The seeds are the sources, then the targets, both with positives before negatives. In disjoint batches each end
    grows a tree of its own, numbered by its link: a negative belongs to the positive that stands at its position modulo
    their number, as in PyG.
    """

    def __init__(self, inputs: EdgeSamplerInput, schema: GraphSchema, config: SamplingConfig) -> None:
        self._inputs = inputs
        self._config = config
        self._edge_type = edge_type_index(schema, inputs.input_type, "edge_label_index")
        self.seed_type, self._target_type = seed_types_of(inputs, schema)
        self._negatives: NegativePool | None = None
        if inputs.neg_sampling is not None:
            counts = (schema.num_nodes[self.seed_type], schema.num_nodes[self._target_type])
            self._negatives = NegativePool.of(*counts, inputs.neg_sampling)
        self._hard_type = self._find_hard(schema)
        self.asks = self._negatives is not None or config.induced
        self.reads_edges = config.induced or inputs.excluded is not None or inputs.excluded_reverse is not None
        self._reverse_type: int | None = None
        if inputs.excluded_reverse is not None:
            self._reverse_type = edge_type_index(schema, inputs.reverse_type, "reverse_etypes")
        if not config.with_edge and (inputs.excluded is not None or inputs.excluded_reverse is not None):
            raise InvalidArgumentError("with_edge: expected True where edges of links are excluded, got False")

    async def begin(self, graph: GraphAccess, positions: torch.Tensor, *, epoch: int, index: int) -> BatchSeeds:
        """See ``Task``."""
        inputs = self._inputs[positions].to(graph.device)
        ends = await self._with_negatives(graph, inputs, epoch, index)
        disjoint, times = self._config.is_disjoint, inputs.time
        source_times = None if times is None else times[ends.source_links]
        target_times = None if times is None else times[ends.target_links]
        seeds = (
            SeedList(self.seed_type, ends.sources, source_times, unique=not disjoint),
            SeedList(self._target_type, ends.targets, target_times, unique=not disjoint),
        )
        return BatchSeeds(seeds, ends)

    async def finish(self, graph: GraphAccess, seeds: BatchSeeds, sampled: Sampled) -> TaskResult:
        """See ``Task``."""
        subgraph, (sources, targets) = sampled
        ends = seeds.ends
        if ends is None:
            raise TypeError("seeds: expected those of links")
        if self._config.induced:
            subgraph = await with_induced_edges(graph, subgraph)
        subgraph = self._without_excluded(subgraph, ends.positives)
        if self._config.is_disjoint:
            link_of_tree = torch.cat([ends.source_links, ends.target_links])
            subgraph = replace(subgraph, trees=tuple(None if t is None else link_of_tree[t] for t in subgraph.trees))
        return TaskResult(subgraph, seeds.lists[0].times, self._labels(ends.positives, sources, targets))

    def _without_excluded(self, subgraph: Subgraph, inputs: EdgeSamplerInput) -> Subgraph:
        """A batch without the edges that its links exclude: what is predicted passes no messages."""
        if inputs.excluded is not None:
            subgraph = without_edges(subgraph, self._edge_type, inputs.excluded)
        if inputs.excluded_reverse is not None and self._reverse_type is not None:
            subgraph = without_edges(subgraph, self._reverse_type, inputs.excluded_reverse)
        return subgraph

    async def _with_negatives(self, graph: GraphAccess, inputs: EdgeSamplerInput, epoch: int, index: int) -> LinkEnds:
        sampling, links = inputs.neg_sampling, torch.arange(len(inputs), device=graph.device)
        if sampling is None or self._negatives is None:
            return LinkEnds(inputs, inputs.row, inputs.col, links, links)
        key = negative_key(self._config.seed, epoch, index, self._edge_type)
        check = functools.partial(graph.has_edges, self._edge_type) if sampling.strict else None
        fill = functools.partial(graph.fill_negatives, self._edge_type)
        if sampling.is_triplet():
            amount = int(sampling.amount)
            limit = self._limit(graph, self._target_type, inputs.time, links.repeat_interleave(amount))
            drawn = await self._negatives.draw_targets(inputs.row, amount, key, has_edge=check, limit=limit, fill=fill)
            drawn = await self._with_hard(graph, inputs.row, drawn, epoch, index)
            targets = torch.cat([inputs.col, drawn.t().reshape(-1)])
            return LinkEnds(inputs, inputs.row, targets, links, links.repeat(1 + drawn.size(1)))
        count = sampling.count(len(inputs))
        slot_links = torch.arange(count, device=graph.device) % max(1, len(inputs))
        limits = [self._limit(graph, end, inputs.time, slot_links) for end in (self.seed_type, self._target_type)]
        sources, targets, slots = await self._negatives.draw_pairs(
            count, key, has_edge=check, limits=(limits[0], limits[1]), fill=fill
        )
        belongs = torch.cat([links, slot_links[slots]])
        ends = torch.cat([inputs.row, sources]), torch.cat([inputs.col, targets])
        return LinkEnds(inputs, *ends, belongs, belongs)

    def _find_hard(self, schema: GraphSchema) -> int | None:
        """The edge type of hard negatives, if there are any."""
        sampling = self._inputs.neg_sampling
        if sampling is None or sampling.hard is None:
            return None
        found = edge_type_index(schema, sampling.hard, "hard")
        wanted = self.seed_type, self._target_type
        if schema.edge_specs[found] != wanted:
            source, target = (schema.node_types[number] for number in wanted)
            raise InvalidArgumentError(
                f"hard: expected a type by which {target!r} are sampled for {source!r}, as the links have these ends "
                f"(a data set of {schema.edge_dir}-neighbors), got {sampling.hard}"
            )
        if self._config.temporal_strategy is not None:
            raise InvalidArgumentError(f"hard: expected None where links have times, got {sampling.hard}")
        return found

    async def _with_hard(
        self, graph: GraphAccess, sources: torch.Tensor, drawn: torch.Tensor, epoch: int, index: int
    ) -> torch.Tensor:
        """Targets int64 ``[n, amount]``, the first of each source its neighbors along the type of hard negatives."""
        if self._hard_type is None:
            return drawn
        amount, key = drawn.size(1), int(_C.draw_key(self._config.seed, epoch, index, _HARD_HOP, self._hard_type))
        links = torch.arange(len(sources))
        ((counts, hard),) = await graph.draw_neighbors([NeighborDraw(self._hard_type, sources, amount, key, links)])
        return drawn.masked_scatter(torch.arange(amount) < counts[:, None], hard)

    @staticmethod
    def _limit(
        graph: GraphAccess, node_type: int, times: torch.Tensor | None, slot_links: torch.Tensor
    ) -> TimeLimit | None:
        """No node of a type that has times may be later than the link of its slot, where links have times."""
        earliest = graph.earliest_node(node_type)
        if times is None or earliest is None:
            return None
        return TimeLimit(functools.partial(graph.node_times, node_type), earliest, times[slot_links])

    def _labels(self, inputs: EdgeSamplerInput, sources: torch.Tensor, targets: torch.Tensor) -> LinkLabels:
        """The links in local ids."""
        num_positives, sampling = len(inputs), inputs.neg_sampling
        if sampling is not None and sampling.is_triplet():
            drawn = targets[num_positives:].view(-1, num_positives).t().contiguous()
            drawn = drawn.view(-1) if drawn.size(1) == 1 else drawn
            return LinkLabels(self._edge_type, None, None, sources, targets[:num_positives].contiguous(), drawn)
        label = inputs.label
        if sampling is not None:
            label = torch.ones(num_positives, device=sources.device) if label is None else label
            zeros = label.new_zeros((sources.numel() - num_positives, *label.shape[1:]))
            label = torch.cat([label, zeros])
        return LinkLabels(self._edge_type, torch.stack([sources, targets]), label, None, None, None)

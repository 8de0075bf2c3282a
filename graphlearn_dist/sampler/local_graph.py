"""A graph held whole in this process, as batches are made from it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import torch

from .. import _C
from ..core import thread_pool, to_optional_tensor, to_tensor
from ..data.dataset import Dataset
from ..data.schema import GraphSchema
from ..errors import InvalidArgumentError
from ..messages import Subgraph
from .links.negative_slots import FilledSlots, NegativeSlots, fill_by_asking
from .plan import SamplingPlan
from .tasks import DrawnNeighbors, InducedEdges, NamedSeeds, NeighborDraw, Sampled, SeedList


def to_subgraph(arrays: tuple[Any, ...]) -> Subgraph:
    """A ``Subgraph`` from what ``_C.BatchBuilder`` hands out."""
    nodes, edges, edge_ids, num_nodes, num_edges, trees = arrays
    unwritten = [each if isinstance(each, _C.EdgeRuns) else None for each in edges]
    return Subgraph(
        nodes=tuple(map(to_tensor, nodes)),
        # Large tensors are address space only as long as nobody writes them.
        edge_index=tuple(
            [
                to_tensor(each) if runs is None else torch.empty((2, len(runs)), dtype=torch.int64)
                for each, runs in zip(edges, unwritten, strict=True)
            ]
        ),
        edge_ids=tuple(map(to_optional_tensor, edge_ids)),
        num_sampled_nodes=tuple(map(tuple, num_nodes)),
        num_sampled_edges=tuple(map(tuple, num_edges)),
        trees=tuple(map(to_optional_tensor, trees)),
        unwritten=tuple(unwritten) if any(unwritten) else (),
    )


class BuilderPool:
    """Batch builders for reuse: each holds tables of local ids. Thread-safe.

    Args:
        schema: node and edge types.
        most_dense: a type of so many nodes has a table as large as that, which is fast; one of more nodes has a table
            of the size of a batch. Where many batches are under way, large tables take much memory.
    """

    def __init__(self, schema: GraphSchema, most_dense: int | None = None) -> None:
        self._schema = schema
        self._most_dense = most_dense
        self._idle: list[_C.BatchBuilder] = []
        self._lock = threading.Lock()

    def take(self) -> _C.BatchBuilder:
        """A builder for one batch; give it back afterwards."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _C.BatchBuilder(list(self._schema.num_nodes), list(self._schema.edge_specs), self._most_dense)

    def give_back(self, builder: _C.BatchBuilder) -> None:
        """Takes a builder back whose batch is finished."""
        with self._lock:
            self._idle.append(builder)


def begin_batch(builder: _C.BatchBuilder, plan: SamplingPlan, seeds: Sequence[SeedList]) -> tuple[torch.Tensor, ...]:
    """Starts a batch with its seeds; gives the local ids of each list, int64 ``[n]``.

    Raises:
        UnknownIdError: a seed is outside the graph.
    """
    # Lists, as generators are called once for each entry.
    count = sum([part.ids.numel() for part in seeds])
    builder.begin(count, plan.max_new_nodes(count), plan.with_edge_ids, plan.disjoint)
    return tuple([to_tensor(builder.add_seeds(part.node_type, part.ids, part.times, part.unique)) for part in seeds])


class HopSampler:
    """Samples batches from graphs that are at hand, every hop of a batch in one native call. Thread-safe.

    Args:
        plan: how to sample.
        graphs: by edge type; held whole, or in pieces.
        num_threads: threads of one batch; the result does not depend on them.
    """

    def __init__(self, plan: SamplingPlan, graphs: Sequence[_C.Csr | _C.CsrPieces], num_threads: int = 1) -> None:
        self._plan = plan
        self._graphs = list(graphs)
        self._builders = BuilderPool(plan.schema)
        self._pool = thread_pool(num_threads)

    def sample(self, wanted: Sequence[NamedSeeds], *, leaves_edges: bool) -> list[Sampled]:
        """As ``GraphAccess.sample``, without waiting."""
        return [self._sample(*of_batch, leaves_edges) for of_batch in wanted]

    def _sample(self, seeds: Sequence[SeedList], epoch: int, index: int, leaves_edges: bool) -> Sampled:
        plan = self._plan
        builder = self._builders.take()
        local_ids = begin_batch(builder, plan, seeds)
        counter = [plan.seed, epoch, index]
        arrays = builder.sample(
            self._graphs, plan.fanouts, plan.native_draws, plan.with_edge_ids, counter, self._pool, leaves_edges
        )
        self._builders.give_back(builder)
        return to_subgraph(arrays), local_ids


class LocalGraph:
    """A ``GraphAccess`` that never waits; safe to use from several threads at once.

    Args:
        dataset: the graph.
        plan: how to sample.
        num_threads: threads of one batch; the result does not depend on them.
    """

    def __init__(self, dataset: Dataset, plan: SamplingPlan, num_threads: int = 1) -> None:
        graphs = dataset.graphs()
        for graph in graphs.values():
            graph.check_held_whole("data")
        self.plan = plan
        self.device = torch.device("cpu")
        ordered = [graphs[edge_type] for edge_type in plan.schema.edge_types]
        self._node_times = [dataset.node_times.get(node_type) for node_type in plan.schema.node_types]
        self._earliest_nodes = [dataset.earliest_nodes.get(node_type) for node_type in plan.schema.node_types]
        self._graphs = [draw.handler(graph) for draw, graph in zip(plan.draws, ordered, strict=True)]
        self._sampler = HopSampler(plan, self._graphs, num_threads)
        self._pool = thread_pool(num_threads)

    async def sample(self, wanted: Sequence[NamedSeeds], *, leaves_edges: bool = False) -> list[Sampled]:
        """See ``GraphAccess``."""
        return self._sampler.sample(wanted, leaves_edges=leaves_edges)

    async def has_edges(self, edge_type: int, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See ``GraphAccess``."""
        rows, cols = (sources, targets) if self.plan.schema.edge_dir == "out" else (targets, sources)
        return to_tensor(_C.has_edges(self._graphs[edge_type], rows, cols, self._pool)).to(torch.bool)

    async def draw_neighbors(self, draws: Sequence[NeighborDraw]) -> list[DrawnNeighbors]:
        """See ``GraphAccess``."""
        return list(map(self._draw, draws))

    def _draw(self, of: NeighborDraw) -> DrawnNeighbors:
        how = self.plan.draws[of.edge_type].native
        counts, neighbors, _ = _C.sample_neighbors(
            self._graphs[of.edge_type], of.ids, None, of.fanout, how, of.key, False, self._pool, of.trees
        )
        return to_tensor(counts), to_tensor(neighbors).long()

    async def degrees(self, edge_type: int, ids: torch.Tensor) -> torch.Tensor:
        """See ``HostGraph``."""
        return to_tensor(_C.degrees_of(self._graphs[edge_type], ids))

    async def fill_negatives(self, edge_type: int, slots: NegativeSlots) -> FilledSlots:
        """See ``GraphAccess``."""
        return await fill_by_asking(slots, functools.partial(self.has_edges, edge_type))

    def earliest_node(self, node_type: int) -> int | None:
        """See ``GraphAccess``."""
        return self._earliest_nodes[node_type]

    async def node_times(self, node_type: int, ids: torch.Tensor) -> torch.Tensor:
        """See ``GraphAccess``."""
        times = self._node_times[node_type]
        if times is None:
            raise InvalidArgumentError(f"node_type: expected one with times, got {node_type}")
        return times[ids]

    async def induced(self, nodes: tuple[torch.Tensor, ...]) -> tuple[InducedEdges, ...]:
        """See ``GraphAccess``."""
        with_edge_ids, found = self.plan.with_edge_ids, []
        for graph, (seed_type, neighbor_type) in zip(self._graphs, self.plan.schema.edge_specs, strict=True):
            counts, neighbors, edge_ids = _C.induced_edges(
                graph, nodes[seed_type], None, nodes[neighbor_type], with_edge_ids, self._pool
            )
            found.append(InducedEdges(to_tensor(counts), to_tensor(neighbors), to_optional_tensor(edge_ids)))
        return tuple(found)

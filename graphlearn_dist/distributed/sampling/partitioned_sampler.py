"""Sampling over partitions: split by owner, ask the peers, sample what is at hand, stitch in the order asked."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Protocol, TypeVar

import torch

from ... import _C
from ...core import narrowed_ids, thread_pool, to_optional_tensor, to_tensor
from ...data.schema import NODE_TIME, store_name
from ...messages import EdgeCheckRequest, FeatureRequest, InducedRequest, OneHopRequest, Subgraph
from ...sampler.local_graph import BuilderPool, HopSampler, begin_batch, to_subgraph
from ...sampler.negative_slots import FilledSlots, NegativeSlots, fill_by_asking
from ...sampler.plan import SamplingPlan
from ...sampler.tasks import InducedEdges, SeedList
from ..dist_dataset import DistDataset
from ..partitions.partition_service import HopNodes, PartitionService, SampledPart

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Peers(Protocol):
    """The other partitions."""

    def ask(
        self, partition: int, function: Callable[[PartitionService, Request], Reply], request: Request
    ) -> Awaitable[Reply]:
        """Calls a function of a process that holds the partition."""


@dataclass(frozen=True)
class OwnerSplit:
    """Ids grouped by owner.

    Attributes:
        ids: int64 ``[n]``, grouped by owner, each group in the order asked.
        rows: int64 ``[n]``, their rows at the owner.
        positions: int64 ``[n]``, where each stood in the list that was split.
        offsets: int64 ``[num_partitions + 1]``, bounds of the groups.
        bounds: the same as a list.
        trees: int64 ``[n]``, the tree each node stands in, grouped likewise; None unless the batch is disjoint.
        times: int64 ``[n]``, the time of that tree; None where seeds have none.
    """

    ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    offsets: torch.Tensor
    bounds: list[int]
    trees: torch.Tensor | None = None
    times: torch.Tensor | None = None

    def nodes(self, partition: int) -> HopNodes:
        """What one owner has of a frontier."""

        def part(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else self.part(values, partition)

        return HopNodes(
            self.part(self.ids, partition), self.part(self.rows, partition), part(self.trees), part(self.times)
        )

    def asked_of(self, partition: int) -> torch.Tensor:
        """The ids to ask one owner for, int32 where they fit."""
        return narrowed_ids(self.part(self.ids, partition))

    def part(self, values: torch.Tensor, partition: int) -> torch.Tensor:
        """The entries of one owner, of any of these lists."""
        return values[self.bounds[partition] : self.bounds[partition + 1]]

    def count(self, partition: int) -> int:
        """How many ids an owner has."""
        return self.bounds[partition + 1] - self.bounds[partition]


def split_by_owner(book: Any, ids: torch.Tensor, pool: _C.ThreadPool) -> OwnerSplit:
    """Groups ids by owner; an id outside the book raises ``UnknownIdError``."""
    grouped, rows, positions, offsets = map(to_tensor, _C.split_by_owner(book, ids, pool))
    return OwnerSplit(grouped, rows, positions, offsets, offsets.tolist())


def split_frontier(book: Any, frontier: tuple[Any, Any, Any], pool: _C.ThreadPool) -> OwnerSplit:
    """Groups a frontier by owner, with the trees and times of its nodes where it has them."""
    ids, trees, times = to_tensor(frontier[0]), to_optional_tensor(frontier[1]), to_optional_tensor(frontier[2])
    split = split_by_owner(book, ids, pool)
    grouped_trees = None if trees is None else trees[split.positions]
    return replace(split, trees=grouped_trees, times=None if times is None else times[split.positions])


class PartitionedGraph:
    """A ``GraphAccess`` to a partitioned graph, with the same answers as a ``LocalGraph`` of the whole.

    Where all partitions are at hand they are sampled like one graph that lies in pieces. Otherwise there is one request
    per peer and hop, whatever the number of edge types; none for an empty share.

    Args:
        dataset: this process's partition.
        plan: how to sample.
        services: the partitions at hand, this process's own among them.
        peers: the other partitions.
        num_threads: threads of one batch.
    """

    def __init__(
        self,
        dataset: DistDataset,
        plan: SamplingPlan,
        services: Sequence[PartitionService],
        peers: Peers,
        num_threads: int = 1,
    ) -> None:
        self.plan = plan
        self.device = torch.device("cpu")
        self._services = {service.partition_idx: service for service in services}
        self._peers = peers
        self._num_partitions = dataset.num_partitions
        self._books = [book.native for book in dataset.row_books()]
        node_types, store_books = plan.schema.node_types, dataset.store_books()
        self._node_books = [store_books[store_name(NODE_TIME, i)].native for i in range(len(node_types))]
        self._earliest_nodes = [dataset.earliest_nodes.get(node_type) for node_type in node_types]
        self._builders = BuilderPool(plan.schema)
        self._pool = thread_pool(num_threads)
        all_at_hand = len(self._services) == self._num_partitions
        self._in_place = HopSampler(plan, self._graphs_in_pieces(), num_threads) if all_at_hand else None

    def _graphs_in_pieces(self) -> list[_C.CsrPieces]:
        """By edge type, the pieces that the partitions hold."""
        services = [self._services[partition] for partition in range(self._num_partitions)]
        return [
            _C.CsrPieces(book, [service.native_graph(edge_type, draw) for service in services])
            for edge_type, (book, draw) in enumerate(zip(self._books, self.plan.draws, strict=True))
        ]

    async def sample(
        self, seeds: Sequence[SeedList], *, epoch: int, index: int
    ) -> tuple[Subgraph, tuple[torch.Tensor, ...]]:
        """See ``GraphAccess``."""
        if self._in_place is not None:
            return self._in_place.sample(seeds, epoch=epoch, index=index)
        builder = self._builders.take()
        local_ids = begin_batch(builder, self.plan, seeds)
        for hop, fanouts in enumerate(self.plan.fanouts):
            await self._sample_hop(builder, hop, fanouts, epoch, index)
            builder.next_hop()
        subgraph = to_subgraph(builder.finish())
        self._builders.give_back(builder)
        return subgraph, local_ids

    async def _sample_hop(
        self, builder: _C.BatchBuilder, hop: int, fanouts: tuple[int, ...], epoch: int, index: int
    ) -> None:
        splits = self._split_frontiers(builder, fanouts)
        keys = {edge_type: self.plan.key(epoch, index, hop, edge_type) for edge_type in splits}
        asked = {}
        for partition in range(self._num_partitions):
            edge_types = tuple(edge_type for edge_type, split in splits.items() if split.count(partition))
            if partition not in self._services and edge_types:
                request = self._request(splits, edge_types, partition, fanouts, keys)
                asked[partition] = edge_types, self._peers.ask(partition, PartitionService.one_hop, request)
        parts: dict[int, list[SampledPart | None]] = {edge_type: [None] * self._num_partitions for edge_type in splits}
        for edge_type, split in splits.items():
            for partition, service in self._at_hand(split):
                nodes, draw = split.nodes(partition), self.plan.draws[edge_type]
                parts[edge_type][partition] = service.sample_rows(
                    edge_type, nodes, fanouts[edge_type], draw, keys[edge_type], self.plan.with_edge_ids
                )
        for partition, (edge_types, answer) in asked.items():
            reply = await answer
            for i, edge_type in enumerate(edge_types):
                parts[edge_type][partition] = reply.counts[i], reply.neighbors[i], reply.edge_ids[i]
        for edge_type, split in splits.items():
            counts, neighbors, edge_ids = self._stitch(split, parts[edge_type], fanouts[edge_type])
            builder.add_hop(edge_type, counts, neighbors, edge_ids)

    def _split_frontiers(self, builder: _C.BatchBuilder, fanouts: tuple[int, ...]) -> dict[int, OwnerSplit]:
        """The frontier of each edge type that is sampled in this hop, by owner; types with one frontier share it."""
        by_seed_type: dict[int, OwnerSplit] = {}
        splits = {}
        for edge_type, (seed_type, _) in enumerate(self.plan.schema.edge_specs):
            if fanouts[edge_type] == 0:
                continue
            if seed_type not in by_seed_type:
                by_seed_type[seed_type] = split_frontier(
                    self._books[edge_type], builder.frontier(seed_type), self._pool
                )
            splits[edge_type] = by_seed_type[seed_type]
        return splits

    def _request(
        self,
        splits: dict[int, OwnerSplit],
        edge_types: tuple[int, ...],
        partition: int,
        fanouts: tuple[int, ...],
        keys: dict[int, int],
    ) -> OneHopRequest:
        nodes = [splits[edge_type].nodes(partition) for edge_type in edge_types]
        return OneHopRequest(
            edge_types=edge_types,
            ids=tuple(splits[edge_type].asked_of(partition) for edge_type in edge_types),
            fanouts=tuple(fanouts[edge_type] for edge_type in edge_types),
            keys=tuple(keys[edge_type] for edge_type in edge_types),
            draws=tuple(astuple(self.plan.draws[edge_type]) for edge_type in edge_types),
            with_edge_ids=self.plan.with_edge_ids,
            trees=tuple(part.trees for part in nodes),
            times=tuple(part.times for part in nodes),
        )

    def _at_hand(self, split: OwnerSplit) -> Iterator[tuple[int, PartitionService]]:
        """The partitions at hand that own some of the ids."""
        return ((partition, service) for partition, service in self._services.items() if split.count(partition))

    def _stitch(self, split: OwnerSplit, parts: list[SampledPart | None], max_count: int = -1) -> SampledPart:
        """What the owners gave, in the order asked; more than ``max_count`` neighbors of a node are refused."""
        stitched = _C.stitch_neighbors(split.positions, split.offsets, parts, self._pool, max_count)
        counts, neighbors, edge_ids = to_tensor(stitched[0]), to_tensor(stitched[1]), to_optional_tensor(stitched[2])
        if self.plan.with_edge_ids and edge_ids is None:  # nobody had an edge to give
            edge_ids = torch.empty(0, dtype=torch.int64)
        return counts, neighbors, edge_ids

    async def has_edges(self, edge_type: int, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See ``GraphAccess``: one request for each peer that owns some of the rows."""
        ids, neighbors = (sources, targets) if self.plan.schema.edge_dir == "out" else (targets, sources)
        split = split_by_owner(self._books[edge_type], ids, self._pool)
        neighbors = neighbors[split.positions]
        found = torch.empty(ids.numel(), dtype=torch.bool)
        asked = {}
        for partition in range(self._num_partitions):
            if partition not in self._services and split.count(partition):
                request = EdgeCheckRequest(
                    edge_type, split.asked_of(partition), narrowed_ids(split.part(neighbors, partition))
                )
                asked[partition] = self._peers.ask(partition, PartitionService.has_edges, request)
        for partition, service in self._at_hand(split):
            rows, theirs = split.part(split.rows, partition), split.part(neighbors, partition)
            found[split.part(split.positions, partition)] = service.rows_have_edges(edge_type, rows, theirs)
        for partition, answer in asked.items():
            found[split.part(split.positions, partition)] = (await answer).found
        return found

    async def fill_negatives(self, edge_type: int, slots: NegativeSlots) -> FilledSlots:
        """See ``GraphAccess``."""
        return await fill_by_asking(slots, functools.partial(self.has_edges, edge_type))

    def earliest_node(self, node_type: int) -> int | None:
        """See ``GraphAccess``."""
        return self._earliest_nodes[node_type]

    async def node_times(self, node_type: int, ids: torch.Tensor) -> torch.Tensor:
        """See ``GraphAccess``: one request for each peer that owns some of the nodes."""
        store = store_name(NODE_TIME, node_type)
        split = split_by_owner(self._node_books[node_type], ids, self._pool)
        times = torch.empty(ids.numel(), dtype=torch.int64)
        here = {partition: service for partition, service in self._at_hand(split) if service.holds(store)}
        asked = {}
        for partition in range(self._num_partitions):
            if partition not in here and split.count(partition):
                request = FeatureRequest((store,), (split.asked_of(partition),))
                asked[partition] = self._peers.ask(partition, PartitionService.lookup, request)
        for partition, service in here.items():
            positions, rows = split.part(split.positions, partition), split.part(split.rows, partition)
            service.rows(store).gather_into(times, positions, rows)
        for partition, answer in asked.items():
            times[split.part(split.positions, partition)] = (await answer).rows[0]
        return times

    async def induced(self, nodes: tuple[torch.Tensor, ...]) -> tuple[InducedEdges, ...]:
        """See ``GraphAccess``: one request a peer, whatever the number of edge types."""
        specs, with_edge_ids = self.plan.schema.edge_specs, self.plan.with_edge_ids
        splits = [
            split_by_owner(book, nodes[seed_type], self._pool)
            for book, (seed_type, _) in zip(self._books, specs, strict=True)
        ]
        asked = {}
        for partition in range(self._num_partitions):
            edge_types = tuple(edge_type for edge_type, split in enumerate(splits) if split.count(partition))
            if partition not in self._services and edge_types:
                ids = tuple(splits[edge_type].asked_of(partition) for edge_type in edge_types)
                members = tuple(specs[edge_type][1] for edge_type in edge_types)
                request = InducedRequest(edge_types, ids, members, nodes, with_edge_ids)
                asked[partition] = edge_types, self._peers.ask(partition, PartitionService.induced, request)
        parts: list[list[SampledPart | None]] = [[None] * self._num_partitions for _ in splits]
        for edge_type, split in enumerate(splits):
            for partition, service in self._at_hand(split):
                here, rows = split.part(split.ids, partition), split.part(split.rows, partition)
                parts[edge_type][partition] = service.induced_rows(
                    edge_type, here, rows, nodes[specs[edge_type][1]], with_edge_ids
                )
        for partition, (edge_types, answer) in asked.items():
            reply = await answer
            for i, edge_type in enumerate(edge_types):
                parts[edge_type][partition] = reply.counts[i], reply.neighbors[i], reply.edge_ids[i]
        return tuple(InducedEdges(*self._stitch(*of_type)) for of_type in zip(splits, parts, strict=True))

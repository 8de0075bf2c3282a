"""Sampling over partitions: split by owner, ask the peers, sample our own share, stitch in the order asked."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Any, Protocol

import torch

from .. import _C
from ..core import thread_pool, to_optional_tensor, to_tensor
from ..data.dataset import by_type
from ..messages import OneHopReply, OneHopRequest, Subgraph
from ..sampler.neighbor_sampler import BuilderPool, SubgraphSampler, to_subgraph
from ..sampler.plan import SamplingPlan
from .dist_dataset import DistDataset
from .partition_service import ONE_HOP, HopNodes, PartitionService, SampledPart


class Peers(Protocol):
    """The other partitions."""

    def ask(self, partition: int, function: str, request: Any) -> Any:
        """Sends a request to a process that holds the partition; an awaitable of the answer."""


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


class PartitionedSubgraphSampler:
    """Samples batches of a plan from a partitioned graph: the same batches as a ``SubgraphSampler`` of the whole.

    One request per peer and hop, whatever the number of edge types; none for an empty share.

    Args:
        dataset: this process's partition.
        plan: how to sample.
        service: samples this partition's own share.
        peers: the other partitions.
        num_threads: threads of one batch.
    """

    def __init__(
        self, dataset: DistDataset, plan: SamplingPlan, service: PartitionService, peers: Peers, num_threads: int = 1
    ) -> None:
        self.plan = plan
        self._service = service
        self._peers = peers
        self._own = dataset.partition_idx
        self._num_partitions = dataset.num_partitions
        self._books = [book.native for book in dataset.row_books()]
        self._builders = BuilderPool(plan.schema)
        self._pool = thread_pool(num_threads)

    async def sample(self, seeds: torch.Tensor, seed_type: int, *, epoch: int, index: int) -> Subgraph:
        """The batch of ``seeds`` (int64 ``[num_seeds]``, global ids) with the draws of (epoch, index)."""
        plan = self.plan
        builder = self._builders.take()
        builder.begin(seeds.numel(), plan.max_new_nodes(seeds.numel()), plan.with_edge_ids, plan.disjoint)
        builder.add_seeds(seed_type, seeds)
        for hop, fanouts in enumerate(plan.fanouts):
            await self._sample_hop(builder, hop, fanouts, epoch, index)
            builder.next_hop()
        subgraph = to_subgraph(builder.finish())
        self._builders.give_back(builder)
        return subgraph

    async def _sample_hop(
        self, builder: _C.BatchBuilder, hop: int, fanouts: tuple[int, ...], epoch: int, index: int
    ) -> None:
        splits = self._split_frontiers(builder, fanouts)
        keys = {edge_type: self.plan.key(epoch, index, hop, edge_type) for edge_type in splits}
        asked = {}
        for partition in range(self._num_partitions):
            edge_types = tuple(edge_type for edge_type, split in splits.items() if split.count(partition))
            if partition != self._own and edge_types:
                request = self._request(splits, edge_types, partition, fanouts, keys)
                asked[partition] = edge_types, self._peers.ask(partition, ONE_HOP, request)
        parts: dict[int, list[SampledPart | None]] = {edge_type: [None] * self._num_partitions for edge_type in splits}
        for edge_type, split in splits.items():
            if split.count(self._own):
                parts[edge_type][self._own] = self._sample_own(edge_type, split, fanouts[edge_type], keys[edge_type])
        for partition, (edge_types, answer) in asked.items():
            reply: OneHopReply = await answer
            for i, edge_type in enumerate(edge_types):
                parts[edge_type][partition] = reply.counts[i], reply.neighbors[i], reply.edge_ids[i]
        for edge_type, split in splits.items():
            self._add(builder, edge_type, split, parts[edge_type])

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
            ids=tuple(part.ids for part in nodes),
            fanouts=tuple(fanouts[edge_type] for edge_type in edge_types),
            keys=tuple(keys[edge_type] for edge_type in edge_types),
            draws=tuple(astuple(self.plan.draws[edge_type]) for edge_type in edge_types),
            with_edge_ids=self.plan.with_edge_ids,
            trees=tuple(part.trees for part in nodes),
            times=tuple(part.times for part in nodes),
        )

    def _sample_own(self, edge_type: int, split: OwnerSplit, fanout: int, key: int) -> SampledPart:
        draw = self.plan.native_draws[edge_type]
        return self._service.sample_rows(edge_type, split.nodes(self._own), fanout, draw, key, self.plan.with_edge_ids)

    def _add(
        self, builder: _C.BatchBuilder, edge_type: int, split: OwnerSplit, parts: list[SampledPart | None]
    ) -> None:
        stitched = _C.stitch_neighbors(split.positions, split.offsets, parts, self._pool)
        counts, neighbors, edge_ids = to_tensor(stitched[0]), to_tensor(stitched[1]), to_optional_tensor(stitched[2])
        if self.plan.with_edge_ids and edge_ids is None:  # nobody had an edge to give
            edge_ids = torch.empty(0, dtype=torch.int64)
        builder.add_hop(edge_type, counts, neighbors, edge_ids)


class WholeGraphSampler:
    """The same interface where one partition is the whole graph: every hop of a batch in one native call."""

    def __init__(self, dataset: DistDataset, plan: SamplingPlan, num_threads: int = 1) -> None:
        graphs = by_type(dataset.graph)
        self._sampler = SubgraphSampler([graphs[name] for name in plan.schema.edge_types], plan, num_threads)

    async def sample(self, seeds: torch.Tensor, seed_type: int, *, epoch: int, index: int) -> Subgraph:
        """The batch of ``seeds`` with the draws of (epoch, index)."""
        return self._sampler.sample(seeds, seed_type, epoch=epoch, index=index)

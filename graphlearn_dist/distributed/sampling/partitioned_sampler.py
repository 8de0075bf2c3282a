"""Sampling over partitions: split by owner, ask the peers, sample what is at hand, stitch in the order asked."""

from __future__ import annotations

import copy
import functools
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import _C
from ...core import thread_pool, to_optional_tensor, to_tensor
from ...data.schema import NODE_TIME, store_name
from ...errors import ProtocolError
from ...messages import Subgraph
from ...sampler.epochs.batches_together import MOST_DENSE_NODES
from ...sampler.links.negative_slots import FilledSlots, NegativeSlots, fill_by_asking
from ...sampler.local_graph import BuilderPool, HopSampler, begin_batch, to_subgraph
from ...sampler.plan import SamplingPlan
from ...sampler.tasks import DrawnNeighbors, InducedEdges, NamedSeeds, NeighborDraw, Sampled
from ..dist_dataset import DistDataset
from ..partitions.partition_peers import Peers
from ..partitions.partition_service import PartitionService, SampledPart


@dataclass(frozen=True)
class OwnerSplit:
    """Ids grouped by owner.

    Attributes:
        ids: int64 ``[n]``, grouped by owner, each group in the order asked.
        rows: int64 ``[n]``, their rows at the owner.
        positions: int64 ``[n]``, where each stood in the list that was split.
        offsets: int64 ``[num_partitions + 1]``, bounds of the groups.
        bounds: the same as a list.
    """

    ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    offsets: torch.Tensor
    bounds: list[int]

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


def _as_flags(answer: torch.Tensor) -> torch.Tensor:
    """bool ``[n]``, of what a peer answered in their place."""
    if answer.dtype != torch.uint8 or answer.dim() != 1 or (answer.numel() and int(answer.max()) > 1):
        raise ProtocolError(f"answer: expected uint8 [n] of 0 and 1, got {answer.dtype} {list(answer.shape)}")
    return answer.to(torch.bool)


def _as_counts(answer: torch.Tensor) -> torch.Tensor:
    """int64 ``[n]``, of what a peer answered in the fewest bytes."""
    if answer.dtype not in (torch.uint8, torch.int32, torch.int64) or answer.dim() != 1:
        raise ProtocolError(f"answer: expected counts [n], got {answer.dtype} {list(answer.shape)}")
    return answer.long()


def _as_times(answer: torch.Tensor) -> torch.Tensor:
    """int64 ``[n]``, checked."""
    if answer.dtype != torch.int64 or answer.dim() != 1:
        raise ProtocolError(f"answer: expected times as int64 [n], got {answer.dtype} {list(answer.shape)}")
    return answer


def _check_places(places: torch.Tensor, num_members: int) -> None:
    """Of induced edges, the places that peers answered among the nodes of the batch."""
    if not places.numel():
        return
    least, most = map(int, places.aminmax())
    if not 0 <= least <= most < num_members:
        raise ProtocolError(f"answer: expected places among {num_members} nodes, got {least} to {most}")


async def _answers(under_way: Awaitable[_C.SingleRound] | None) -> list[list[Any]]:
    """Question by question, the tensors that were answered."""
    return [] if under_way is None else (await under_way).answers()


class PartitionedGraph:
    """A ``GraphAccess`` to a partitioned graph, with the same answers as a ``LocalGraph`` of the whole.

    Where all partitions are at hand they are sampled like one graph that lies in pieces. Otherwise there is one request
    per peer and hop, whatever the number of edge types, and of small batches that are wanted at once; none for an empty
    share.

    Args:
        dataset: this process's partition.
        plan: how to sample.
        services: the partitions at hand, this process's own among them.
        peers: the other partitions.
        num_threads: threads of one batch.

    Attributes:
        sampled_at_ns: when the last hop of these was over, by ``perf_counter_ns``.
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
        self._pool = thread_pool(num_threads)
        all_at_hand = len(self._services) == self._num_partitions
        self._in_place = HopSampler(plan, self._graphs_in_pieces(), num_threads) if all_at_hand else None
        self._in_exchanges = _C.PartitionedGraph(
            edge_types=plan.schema.edge_specs,
            books=self._books,
            pieces=[self._pieces(partition) for partition in range(self._num_partitions)],
            fanouts=plan.fanouts,
            draws=plan.native_draws,
            with_edge_ids=plan.with_edge_ids,
            seed=plan.seed,
        )
        self._builders = BuilderPool(plan.schema, MOST_DENSE_NODES)
        self._row_plan: _C.RowPlan | None = None
        self._rows: tuple[_C.RowLookup, list[tuple[torch.Tensor, ...]]] | None = None  # and whose nodes' they are
        self.sampled_at_ns = 0

    def with_rows(self, plan: _C.RowPlan) -> PartitionedGraph:
        """The same, for one call of ``sample``, which looks up these rows of the nodes, too."""
        other = copy.copy(self)
        other._row_plan = plan
        return other

    def _pieces(self, partition: int) -> list[_C.Csr]:
        """By edge type, what a partition at hand holds; of another nothing."""
        service = self._services.get(partition)
        if service is None:
            return []
        return [service.native_graph(edge_type, draw) for edge_type, draw in enumerate(self.plan.draws)]

    def _graphs_in_pieces(self) -> list[_C.CsrPieces]:
        """By edge type, the pieces that the partitions hold."""
        services = [self._services[partition] for partition in range(self._num_partitions)]
        return [
            _C.CsrPieces(book, [service.native_graph(edge_type, draw) for service in services])
            for edge_type, (book, draw) in enumerate(zip(self._books, self.plan.draws, strict=True))
        ]

    async def sample(self, wanted: Sequence[NamedSeeds], *, leaves_edges: bool = False) -> list[Sampled]:
        """See ``GraphAccess``: one exchange with the other partitions, of several rounds of queries, rows the last."""
        if self._in_place is not None:
            return self._in_place.sample(wanted, leaves_edges=leaves_edges)
        began: list[tuple[_C.BatchBuilder, tuple[torch.Tensor, ...]]] = []

        def make() -> _C.SampleExchange:
            began.clear()
            batches = []
            for seeds, epoch, index in wanted:
                builder = self._builders.take()
                began.append((builder, begin_batch(builder, self.plan, seeds)))
                batches.append((builder, epoch, index))
            return _C.SampleExchange(self._in_exchanges, batches, self._pool, leaves_edges, self._row_plan)

        done = await self._peers.run(make)
        for builder, _ in began:
            self._builders.give_back(builder)
        batches = list(map(to_subgraph, done.take_batches()))
        if done.rows is not None:
            self._rows = done.rows, [batch.nodes for batch in batches]
        self.sampled_at_ns = done.sampled_at_ns
        return [(batch, local_ids) for batch, (_, local_ids) in zip(batches, began, strict=True)]

    def rows_of(self, batches: Sequence[Subgraph]) -> _C.RowLookup | None:
        """The rows that ``with_rows`` was given, of what was sampled; None where nobody was asked for them, or where
        these batches have other nodes: a task has changed them."""
        rows, sampled = self._rows or (None, [])
        is_same = len(sampled) == len(batches) and all(
            new is old
            for batch, nodes in zip(batches, sampled, strict=True)
            for new, old in zip(batch.nodes, nodes, strict=True)
        )
        return rows if is_same else None

    def _asked(self, splits: Sequence[OwnerSplit]) -> list[tuple[int, list[int]]]:
        """The partitions to ask, each with which of the splits it owns some of."""
        others = (partition for partition in range(self._num_partitions) if partition not in self._services)
        owned = ((p, [i for i, split in enumerate(splits) if split.count(p)]) for p in others)
        return [(partition, about) for partition, about in owned if about]

    def _at_hand(self, split: OwnerSplit) -> Iterator[tuple[int, PartitionService]]:
        """The partitions at hand that own some of the ids."""
        return ((partition, service) for partition, service in self._services.items() if split.count(partition))

    def _stitch(self, split: OwnerSplit, parts: list[SampledPart | None]) -> SampledPart:
        """What the owners gave, in the order asked."""
        stitched = _C.stitch_neighbors(split.positions, split.offsets, parts, self._pool)
        counts, neighbors, edge_ids = to_tensor(stitched[0]), to_tensor(stitched[1]), to_optional_tensor(stitched[2])
        if self.plan.with_edge_ids and edge_ids is None:  # nobody had an edge to give
            edge_ids = torch.empty(0, dtype=torch.int64)
        return counts, neighbors.long(), None if edge_ids is None else edge_ids.long()

    async def draw_neighbors(self, draws: Sequence[NeighborDraw]) -> list[DrawnNeighbors]:
        """See ``GraphAccess``: one request for each peer that owns some of the nodes."""
        splits = [split_by_owner(self._books[of.edge_type], of.ids, self._pool) for of in draws]
        trees = [
            None if of.trees is None else of.trees[split.positions] for of, split in zip(draws, splits, strict=True)
        ]
        methods = [self.plan.draws[of.edge_type] for of in draws]

        def part_trees(i: int, partition: int) -> torch.Tensor | None:
            of_draw = trees[i]
            return None if of_draw is None else splits[i].part(of_draw, partition)

        asked = self._asked(splits)
        questions = []
        for partition, about in asked:
            parts = []
            for i in about:
                of, ids = draws[i], splits[i].part(splits[i].ids, partition)
                parts.append((of.edge_type, ids, of.fanout, methods[i].native, of.key, part_trees(i, partition), None))
            counts = [splits[i].count(partition) for i in about]
            lengths = [each for n in counts for each in (n, _C.SingleRound.ANY_LENGTH, _C.SingleRound.MAY_BE_ABSENT)]
            questions.append((partition, _C.hop_query(parts, False), lengths))
        under_way = self._peers.run(lambda: _C.SingleRound(questions)) if asked else None
        found: list[list[SampledPart | None]] = [[None] * self._num_partitions for _ in draws]
        for i, (of, split) in enumerate(zip(draws, splits, strict=True)):
            for partition, service in self._at_hand(split):
                graph = service.native_graph(of.edge_type, methods[i])
                here, rows = split.part(split.ids, partition), split.part(split.rows, partition)
                theirs = part_trees(i, partition)
                part = _C.sample_neighbors(
                    graph, here, rows, of.fanout, methods[i].native, of.key, False, self._pool, theirs
                )
                found[i][partition] = to_tensor(part[0]), to_tensor(part[1]), None
        for (partition, about), answer in zip(asked, await _answers(under_way), strict=True):
            for at, i in enumerate(about):
                found[i][partition] = to_tensor(answer[3 * at]), to_tensor(answer[3 * at + 1]), None
        return [self._drawn(*each) for each in zip(draws, splits, found, strict=True)]

    def _drawn(self, of: NeighborDraw, split: OwnerSplit, parts: list[SampledPart | None]) -> DrawnNeighbors:
        stitched = _C.stitch_neighbors(split.positions, split.offsets, parts, self._pool, of.fanout)
        neighbors = to_tensor(stitched[1]).long()
        _check_places(neighbors, self.plan.schema.num_nodes[self.plan.schema.edge_specs[of.edge_type][1]])
        return to_tensor(stitched[0]), neighbors

    async def degrees(self, edge_type: int, ids: torch.Tensor) -> torch.Tensor:
        """See ``HostGraph``: one request for each peer that owns some of the nodes."""
        draw, split = self.plan.draws[edge_type], split_by_owner(self._books[edge_type], ids, self._pool)
        found = torch.empty(ids.numel(), dtype=torch.int64)
        asked = [p for p in range(self._num_partitions) if p not in self._services and split.count(p)]
        questions = [(p, _C.degrees_query(edge_type, split.part(split.ids, p)), [split.count(p)]) for p in asked]
        under_way = self._peers.run(lambda: _C.SingleRound(questions)) if asked else None
        for partition, service in self._at_hand(split):
            degrees = _C.degrees_of(service.native_graph(edge_type, draw), split.part(split.rows, partition))
            found[split.part(split.positions, partition)] = to_tensor(degrees)
        for partition, (answer,) in zip(asked, await _answers(under_way), strict=True):
            found[split.part(split.positions, partition)] = _as_counts(to_tensor(answer))
        return found

    async def has_edges(self, edge_type: int, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See ``GraphAccess``: one request for each peer that owns some of the rows."""
        ids, neighbors = (sources, targets) if self.plan.schema.edge_dir == "out" else (targets, sources)
        split = split_by_owner(self._books[edge_type], ids, self._pool)
        neighbors = neighbors[split.positions]
        found = torch.empty(ids.numel(), dtype=torch.bool)
        asked = [p for p in range(self._num_partitions) if p not in self._services and split.count(p)]
        questions = [
            (p, _C.has_edges_query(edge_type, split.part(split.ids, p), split.part(neighbors, p)), [split.count(p)])
            for p in asked
        ]
        under_way = self._peers.run(lambda: _C.SingleRound(questions)) if asked else None
        for partition, service in self._at_hand(split):
            rows, theirs = split.part(split.rows, partition), split.part(neighbors, partition)
            found[split.part(split.positions, partition)] = service.rows_have_edges(edge_type, rows, theirs)
        for partition, (answer,) in zip(asked, await _answers(under_way), strict=True):
            found[split.part(split.positions, partition)] = _as_flags(to_tensor(answer))
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
        asked = [p for p in range(self._num_partitions) if p not in here and split.count(p)]
        questions = [(p, _C.rows_query([store], [split.part(split.ids, p)]), [split.count(p)]) for p in asked]
        under_way = self._peers.run(lambda: _C.SingleRound(questions)) if asked else None
        for partition, service in here.items():
            positions, rows = split.part(split.positions, partition), split.part(split.rows, partition)
            service.rows(store).gather_into(times, positions, rows)
        for partition, (answer,) in zip(asked, await _answers(under_way), strict=True):
            times[split.part(split.positions, partition)] = _as_times(to_tensor(answer))
        return times

    async def induced(self, nodes: tuple[torch.Tensor, ...]) -> tuple[InducedEdges, ...]:
        """See ``GraphAccess``: one request a peer, whatever the number of edge types."""
        specs, with_edge_ids = self.plan.schema.edge_specs, self.plan.with_edge_ids
        splits = [
            split_by_owner(book, nodes[seed_type], self._pool)
            for book, (seed_type, _) in zip(self._books, specs, strict=True)
        ]
        asked = self._asked(splits)
        questions = [
            (
                partition,
                _C.induced_query(
                    [(i, specs[i][1], splits[i].part(splits[i].ids, partition)) for i in about],
                    list(nodes),
                    with_edge_ids,
                ),
                [
                    length
                    for i in about
                    for length in (
                        splits[i].count(partition),
                        _C.SingleRound.ANY_LENGTH,
                        _C.SingleRound.ANY_LENGTH if with_edge_ids else _C.SingleRound.MAY_BE_ABSENT,
                    )
                ],
            )
            for partition, about in asked
        ]
        under_way = self._peers.run(lambda: _C.SingleRound(questions)) if asked else None
        parts: list[list[SampledPart | None]] = [[None] * self._num_partitions for _ in splits]
        for edge_type, split in enumerate(splits):
            for partition, service in self._at_hand(split):
                here, rows = split.part(split.ids, partition), split.part(split.rows, partition)
                parts[edge_type][partition] = service.induced_rows(
                    edge_type, here, rows, nodes[specs[edge_type][1]], with_edge_ids
                )
        for (partition, about), answer in zip(asked, await _answers(under_way), strict=True):
            for i, edge_type in enumerate(about):
                counts, neighbors, edge_ids = answer[3 * i : 3 * i + 3]
                parts[edge_type][partition] = to_tensor(counts), to_tensor(neighbors), to_optional_tensor(edge_ids)
        stitched = [self._stitch(*of_type) for of_type in zip(splits, parts, strict=True)]
        for (_, places, _), (_, member_type) in zip(stitched, specs, strict=True):
            _check_places(places, nodes[member_type].numel())
        return tuple(InducedEdges(*edges) for edges in stitched)

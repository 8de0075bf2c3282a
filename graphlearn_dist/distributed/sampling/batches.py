"""Whole mini-batches from a partitioned data set: the same as ``sampler.batches.LocalBatches`` makes of the whole."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, NoReturn

import torch

from ...core import pooled_empty
from ...data.disk_tier import Announced
from ...data.schema import NODE_LABEL, store_name
from ...messages import SampledBatch, SampledBatches
from ...partition import CachedRows, OwnedEdgesBook
from ...sampler.base import EdgeSamplerInput, NodeSamplerInput, SamplingConfig
from ...sampler.batch_maker import BatchMaker, unwritten_edges, wanted_rows, with_edges, with_rows, write_edges
from ...sampler.batches import make_plan, whole_graph
from ...sampler.device.device_graph import device_of
from ...sampler.epochs.batches_together import batches_together, expected_pair_bytes, most_together_bytes
from ...sampler.local_graph import LocalGraph
from ...sampler.plan import SamplingPlan
from ...sampler.tasks import HostGraph, seed_types_of
from ...telemetry import BatchCounts, DeviceCacheCounts
from ...telemetry.trace import set_batches, trace_stages, tracer
from ...utils.tensor import on_host
from ..dist_dataset import DistDataset
from ..partitions.partition_peers import Peers
from ..partitions.partition_service import PartitionService
from .feature_collector import FeatureCollector, Lookup, RowPlan
from .partitioned_sampler import PartitionedGraph
from .recent_rows import AskedRows, group_stores

logger = logging.getLogger(__name__)

# Of a batch what is written when its place is known: looked-up rows by store, and `unwritten_edges`.
Rows = Mapping[str, torch.Tensor]
# Given some batches with looked-up rows, and these by batch, still to be written: where each are wanted.
Place = Callable[[Sequence[SampledBatch], Sequence[Rows]], Sequence[Rows]]


class NoPeers:
    """The peers of a data set that is one partition: there is nobody to ask."""

    times = (0, 0, 0, 0)

    def run(self, make: Callable[[], Any]) -> NoReturn:
        raise LookupError("other partitions were asked, but there are none")

    def close(self) -> None:
        """There is nothing to end."""


def sampling_device(dataset: DistDataset) -> torch.device | None:
    """The GPU that loaders of a partition sample on: that of its graphs where it is the whole data set; else None.

    Raises:
        InvalidArgumentError: graphs are on several devices, or only some are on one.
    """
    return device_of(dataset) if dataset.is_whole else None


def tell_where_sampled(dataset: DistDataset) -> None:
    """Logs, once a process, that the CPU samples from graphs that were given a GPU, as they are one of several
    partitions."""
    if not dataset.is_whole and any(
        graph.mode != "CPU" and graph.device is not None for graph in dataset.graphs().values()
    ):
        _tell_of_partitions(dataset.num_partitions)


@functools.cache
def _tell_of_partitions(num_partitions: int) -> None:
    logger.warning(
        "graph_mode, device: the CPU samples: a GPU samples from a graph that is held whole, and this is one of %d "
        "partitions, whose answers lie in host memory",
        num_partitions,
    )


def most_together(
    dataset: DistDataset,
    sampler_input: NodeSamplerInput | EdgeSamplerInput,
    config: SamplingConfig,
    plan: SamplingPlan,
    memory_bytes: int,
    wish: int | None,
    *,
    asks_others: bool,
) -> int:
    """How many batches of a loader may be made together, see ``batches_together``.

    Args:
        dataset: a partition.
        sampler_input: the loader's input nodes or links.
        config: how batches are sampled.
        plan: the same, resolved.
        memory_bytes: for finished batches of who makes them.
        wish: how many the user wants; None has it follow from their size.
        asks_others: whether other processes are asked for some of their rows.
    """
    return batches_together(
        config,
        plan,
        seed_types_of(sampler_input, dataset.schema),
        dataset.stores(),
        most_together_bytes(memory_bytes),
        wish,
        pair_bytes=expected_pair_bytes(memory_bytes) if asks_others else 0,
    )


def stores_of(dataset: DistDataset, config: SamplingConfig) -> frozenset[str]:
    """The stores whose rows come with batches."""
    names = frozenset(dataset.stores())
    labels = {store_name(NODE_LABEL, index) for index in range(len(dataset.schema.node_types))}
    return names if config.collect_features else names & labels if config.collect_labels else frozenset()


def rows_asked_of(num_partitions: int, dataset: DistDataset, config: SamplingConfig) -> list[AskedRows]:
    """What batches look up in so many others of equal size, but for rows that lie with their edges."""
    books, stores = dataset.store_books(), dataset.stores()
    names = {name for name in stores_of(dataset, config) if not isinstance(books[name], OwnedEdgesBook)}

    def describe(name: str) -> tuple[int, int]:
        num_others = books[name].num_ids - stores[name].shape[0]
        return books[name].num_ids, num_others * num_partitions // max(dataset.num_partitions - 1, 1)

    return group_stores(names, lambda name: id(books[name]), describe, stores)


def with_cached_graphs(
    dataset: DistDataset, services: Sequence[PartitionService], num_threads: int
) -> list[PartitionService]:
    """The partitions whose graph is at hand: those whose rows are, and those of ``DistDataset.cached_graphs``."""
    at_hand = {service.partition_idx for service in services}
    cached = (other for other in dataset.cached_graphs if other.partition_idx not in at_hand)
    return [*services, *(PartitionService(other, num_threads) for other in cached)]


@dataclass(frozen=True)
class RowsGraph:
    """A graph that also asks for rows of what is sampled from it, once.

    Attributes:
        graph: it, see ``PartitionedGraph.with_rows``.
        plan: of which rows.
    """

    graph: PartitionedGraph
    plan: RowPlan


class PartitionedSampler:
    """Samples from a partitioned graph, and looks up what belongs to what was sampled.

    Args:
        dataset: this process's partition.
        config: how to sample; which batches a loader wants does not matter here.
        services: the partitions at hand, this process's own among them.
        peers: the other partitions.
        num_threads: threads of one batch; a batch does not depend on them.
        recent_bytes: for rows that other partitions answered lately, see ``FeatureCollector.keep_recent``.
        device: the ``sampling_device`` of the data set, to sample there; None: the CPU samples.
        keeps_device: what a GPU has sampled stays there, and its rows come there; else both are in host memory.

    Attributes:
        collector: looks up rows.
        plan: how to sample, resolved.
    """

    def __init__(
        self,
        dataset: DistDataset,
        config: SamplingConfig,
        services: Sequence[PartitionService],
        peers: Peers,
        num_threads: int = 1,
        *,
        recent_bytes: int = 0,
        device: torch.device | None = None,
        keeps_device: bool = False,
    ) -> None:
        self._dataset, self._services, self._peers, self._num_threads = dataset, services, peers, num_threads
        self._schema = dataset.schema
        self.plan = make_plan(dataset, config)
        self._graph = self.graph_access(self.plan) if device is None else whole_graph(dataset, self.plan, num_threads)
        self._keeps_device = keeps_device and device is not None
        self.collector = FeatureCollector(dataset, services, peers, num_threads)
        self._stores = stores_of(dataset, config)
        self.collector.keep_recent(self._stores, recent_bytes)
        self._repeats = config.is_disjoint  # a node is in several trees

    def graph_access(self, plan: SamplingPlan) -> HostGraph:
        """The graph, its neighbors drawn by a plan."""
        if self._dataset.is_whole:
            return LocalGraph(self._dataset, plan, self._num_threads)
        services = with_cached_graphs(self._dataset, self._services, self._num_threads)
        return PartitionedGraph(self._dataset, plan, services, self._peers, self._num_threads)

    def maker(
        self,
        sampler_input: NodeSamplerInput | EdgeSamplerInput,
        config: SamplingConfig,
        near: torch.Tensor | None = None,
        counts: BatchCounts | None = None,
    ) -> BatchMaker:
        """Makes batches of an input, checked; ``config`` may differ from the sampler's in what is sampled.

        ``near``, ``counts``: see ``BatchMaker``.
        """
        leaves_edges = not self.collector.reads_edges(self._stores)
        return BatchMaker(
            self._graph, self._schema, sampler_input, config, near, counts,
            leaves_edges=leaves_edges, num_threads=self._num_threads,
        )  # fmt: skip

    async def fill(self, batch: SampledBatch) -> SampledBatch:
        """A batch with the rows that are looked up for it."""
        return with_rows(batch, *await self.look_up([batch], place_in_pool))

    def announce(self, batch: SampledBatch) -> Announced:
        """Tells of the rows that ``look_up`` will want for a batch."""
        wanted = {name: ids.cpu() for name, ids in wanted_rows(batch, self._stores).items()}
        return self.collector.announce(wanted, self.collector.places_in(batch.subgraph, wanted))

    def graph_with_rows(self) -> RowsGraph | None:
        """The graph, to sample some batches from, whose rows are asked for with the last hop; None where they cannot
        be: nobody is asked, or edges say where they lie."""
        plan = self.collector.plan_of_nodes(self._stores, repeats=self._repeats)
        if plan is None or not isinstance(self._graph, PartitionedGraph):
            return None
        return RowsGraph(self._graph.with_rows(plan.native), plan)

    async def look_up(
        self, batches: Sequence[SampledBatch], place: Place, asked: RowsGraph | None = None
    ) -> Sequence[Rows]:
        """The rows that are looked up for batches, by store, written once, where ``place`` says they are wanted.

        The same of edges that are unwritten. Rows of batches that stay on a GPU come as ``Feature.gather`` gives them.
        ``asked``: what these batches were sampled from.
        """
        if not self._stores:
            return self._place(batches, [{} for _ in batches], place)
        wanted = [wanted_rows(batch, self._stores) for batch in batches]
        if self._keeps_device:
            return list(map(self.collector.gather_each, wanted))
        rows = None if asked is None else asked.graph.rows_of([batch.subgraph for batch in batches])
        if asked is not None and rows is not None:
            lookup = Lookup(self.collector, wanted, asked.plan, rows)
        else:
            places = [self.collector.places_in(batch.subgraph, of) for batch, of in zip(batches, wanted, strict=True)]
            lookup = self.collector.start(wanted, places, repeats=self._repeats)
        placed = self._place(batches, self.collector.unwritten(wanted), place)
        await lookup.fill(placed)
        return placed

    @staticmethod
    def _place(
        batches: Sequence[SampledBatch], unwritten: list[dict[str, torch.Tensor]], place: Place
    ) -> Sequence[Rows]:
        """Places for what of batches is unwritten: rows (by batch and store), and edges, which are written there."""
        whole = []
        for batch, of in zip(batches, unwritten, strict=True):
            has_rows = bool(of)
            if batch.subgraph.unwritten:
                of.update(unwritten_edges(batch))
            whole.append(with_rows(batch, of) if has_rows else with_edges(batch, of))
        placed = place(whole, unwritten)
        for batch, places in zip(batches, placed, strict=True):
            if batch.subgraph.unwritten:
                write_edges(batch, places)
        return placed


class PartitionedBatches:
    """The batches of one loader, computed by one sampling worker.

    Args:
        dataset: this process's partition.
        sampler_input: the loader's input nodes or links, checked.
        config: how to sample.
        services: the partitions at hand, this process's own among them.
        peers: the other partitions.
        num_threads: threads of one batch; a batch does not depend on them.
        near: see ``make_schedule``.
        counts: where batches are counted; this process's own memory unless given.
        recent_bytes: see ``FeatureCollector.keep_recent``.
        keeps_device: batches that a GPU samples stay there; else they are copied to host memory, to go elsewhere.

    Attributes:
        device: where batches are sampled: the GPU of a data set that is whole; None on the CPU.
        schedule: which seeds are in which batch.
        counts: of the batches made.
        trace_key: what tells them from those of other loaders in a trace.
    """

    def __init__(
        self,
        dataset: DistDataset,
        sampler_input: NodeSamplerInput | EdgeSamplerInput,
        config: SamplingConfig,
        services: Sequence[PartitionService],
        peers: Peers,
        num_threads: int = 1,
        near: torch.Tensor | None = None,
        counts: BatchCounts | None = None,
        *,
        recent_bytes: int = 0,
        keeps_device: bool = False,
    ) -> None:
        self.counts = BatchCounts() if counts is None else counts
        self.device = sampling_device(dataset)
        self._is_moved = self.device is not None and not keeps_device
        self._sampler = PartitionedSampler(
            dataset, config, services, peers, num_threads,
            recent_bytes=recent_bytes, device=self.device, keeps_device=keeps_device,
        )  # fmt: skip
        self._maker = self._sampler.maker(sampler_input, config, near, self.counts)
        self.schedule = self._maker.schedule
        self._peers = peers
        self.trace_key = 0

    @property
    def plan(self) -> SamplingPlan:
        """How batches are sampled, resolved."""
        return self._sampler.plan

    def use_copies(self, copies: Mapping[str, CachedRows]) -> None:
        """See ``FeatureCollector.use_copies``."""
        self._sampler.collector.use_copies(copies)

    def forget_rows(self) -> None:
        """Keeps no rows of other partitions any more, as copies or for having been answered."""
        self._sampler.collector.keep_recent(frozenset(), 0)
        self._sampler.collector.use_copies({})

    def count_rows_in(self, counts: torch.Tensor) -> None:
        """``FeatureCollector.counts`` are added to these."""
        self._sampler.collector.counts = counts

    async def make(self, epoch: int, index: int, run: int = 0) -> SampledBatch:
        """Batch ``index`` of ``epoch`` for the iteration ``run``."""
        ((batch, rows),) = await self.make_in(epoch, (index,), run, place_in_pool)
        return with_rows(batch, rows)

    async def make_in(
        self,
        epoch: int,
        indices: Sequence[int],
        run: int,
        place: Place,
        sampling: Awaitable[list[SampledBatch]] | None = None,
    ) -> list[tuple[SampledBatch, Rows]]:
        """Some batches, each without the rows that were looked up for it, and these, see ``look_up``.

        Other partitions are asked for all of them at once. ``sampling`` gives what ``sample`` does, where that was
        begun before, by who counts its time.
        """
        self._name_in_trace(epoch, indices)
        begun = perf_counter_ns()
        asked = self._sampler.graph_with_rows() if sampling is None else None
        batches = await (self.sample(epoch, indices, run, asked) if sampling is None else sampling)
        sampled = perf_counter_ns()
        if asked is not None:
            sampled = asked.graph.sampled_at_ns or sampled
        rows = await self._sampler.look_up(batches, place, asked)
        made = list(zip(batches, rows, strict=True))
        self.counts.add(made, sampled - begun if sampling is None else 0, perf_counter_ns() - sampled)
        self.counts.follow_exchanges(self._peers.times)
        self.counts.follow_recent(self._sampler.collector.recent_bytes)
        trace_stages(begun, sampled)
        return made

    async def sample(
        self, epoch: int, indices: Sequence[int], run: int, graph: RowsGraph | None = None
    ) -> list[SampledBatch]:
        """The same batches as of ``make``, without the rows that are looked up for them; from ``graph``, if given."""
        self._name_in_trace(epoch, indices)  # where they are sampled ahead, by a task of its own
        maker = self._maker if graph is None else self._maker.sampling_by(graph.graph.sample)
        batches = await maker.make_together(epoch, indices, run)
        return list(map(on_host, batches)) if self._is_moved else batches

    def _name_in_trace(self, epoch: int, indices: Sequence[int]) -> None:
        """What this task asks other partitions from now on is for these batches."""
        if tracer() is not None:
            set_batches(tuple((self.trace_key, epoch, index) for index in indices))

    def announce(self, batch: SampledBatch) -> Announced:
        """Tells of the rows that ``make_in`` will want for a batch."""
        return self._sampler.announce(batch)

    @property
    def device_cache(self) -> DeviceCacheCounts | None:
        """Of rows that a GPU gathers for its batches; None without such caches. Waits for the GPU."""
        return self._sampler.collector.device_cache

    @property
    def reads_disk(self) -> bool:
        """Whether it gains by knowing what comes."""
        return self._sampler.collector.reads_disk


def place_in_pool(batches: Sequence[SampledBatch], rows: Sequence[Rows]) -> list[Rows]:
    """Warm memory of this process."""
    return [
        {name: pooled_empty(tuple(tensor.shape), tensor.dtype) for name, tensor in of_batch.items()}
        for of_batch in rows
    ]


def together(batches: Sequence[SampledBatch]) -> SampledBatch | SampledBatches:
    """What batches are handed on as."""
    return batches[0] if len(batches) == 1 else SampledBatches(tuple(batches))

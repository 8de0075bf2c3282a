"""Whole mini-batches from a partitioned data set: the same as ``sampler.batches.LocalBatches`` makes of the whole."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, NoReturn

import torch

from ...core import pooled_empty
from ...data.device.deferred_gathers import DeferredGathers
from ...data.disk_tier import Announced
from ...data.schema import NODE_LABEL, store_name
from ...errors import StorageError
from ...messages import SampledBatch, SampledBatches
from ...partition import OwnedEdgesBook
from ...sampler.base import EdgeSamplerInput, NodeSamplerInput, SamplingConfig
from ...sampler.batch_maker import BatchMaker, unwritten_edges, wanted_rows, with_edges, with_rows, write_edges
from ...sampler.batches import make_plan, rows_on, whole_graph
from ...sampler.device.device_graph import device_of
from ...sampler.epochs.batches_together import (
    batches_together,
    expected_pair_bytes,
    most_together_bytes,
    pairs_asked_together,
)
from ...sampler.local_graph import LocalGraph
from ...sampler.plan import SamplingPlan
from ...sampler.tasks import HostGraph, seed_types_of
from ...telemetry import BatchCounts, DeviceCacheCounts
from ...telemetry.trace import set_batches, trace_stages, tracer
from ...utils.tensor import on_host
from ..dist_dataset import DistDataset
from ..partitions.dataset_handle import CacheHandle, open_copies
from ..partitions.partition_peers import Peers
from ..partitions.partition_service import PartitionService
from .feature_collector import FeatureCollector, Lookup, RowPlan, Wanted
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


def most_pairs(
    dataset: DistDataset,
    sampler_input: NodeSamplerInput | EdgeSamplerInput,
    config: SamplingConfig,
    plan: SamplingPlan,
    memory_bytes: int,
    count: int,
) -> int:
    """Pairs of batches that are large for whose rows others may be asked at once, see ``pairs_asked_together``.

    The arguments are those of ``most_together``, and how many batches go together.
    """
    seed_types, most_bytes = seed_types_of(sampler_input, dataset.schema), most_together_bytes(memory_bytes)
    return pairs_asked_together(config, plan, seed_types, dataset.stores(), most_bytes, count)


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


@dataclass
class BatchesLookup:
    """A lookup of the rows of some batches.

    Attributes:
        batches: without their rows.
        wanted: by batch and store, ids.
        lookup: of them; None where there are none, or a GPU gathers them.
        begun_ns: when they were named, by ``perf_counter_ns``.
        sampled_ns: when they were sampled.
        uncounted_ns: what has to be counted still of the time that sampling took, and of that which looking up did.
    """

    batches: Sequence[SampledBatch]
    wanted: Sequence[Wanted]
    lookup: Lookup | None = None
    begun_ns: int = 0
    sampled_ns: int = 0
    uncounted_ns: tuple[int, int] = (0, 0)


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
        self.collector = FeatureCollector(dataset, services, peers, num_threads)
        self._stores = stores_of(dataset, config)
        self._gathers: DeferredGathers | None = None  # of batches that stay on the GPU
        if keeps_device and device is not None:
            of_batches = {name: of for name, of in dataset.stores().items() if name in self._stores}
            self._gathers = DeferredGathers(rows_on(device, of_batches), device)
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
        return with_rows(batch, *await self.write(self.begin_lookup([batch]), place_in_pool, range(1)))

    def announce(self, batch: SampledBatch) -> Announced:
        """Tells of the rows that ``begin_lookup`` will want for a batch."""
        wanted = {name: ids.cpu() for name, ids in wanted_rows(batch, self._stores).items()}
        return self.collector.announce(wanted, self.collector.places_in(batch.subgraph, wanted))

    def graph_with_rows(self) -> RowsGraph | None:
        """The graph, to sample some batches from, whose rows are asked for with the last hop; None where they cannot
        be: nobody is asked, or edges say where they lie."""
        plan = self.collector.plan_of_nodes(self._stores, repeats=self._repeats)
        if plan is None or not isinstance(self._graph, PartitionedGraph):
            return None
        return RowsGraph(self._graph.with_rows(plan.native), plan)

    def begin_lookup(self, batches: Sequence[SampledBatch], asked: RowsGraph | None = None) -> BatchesLookup:
        """Asks for the rows of batches, unless what they were sampled from, ``asked``, has."""
        if not self._stores:
            return BatchesLookup(batches, [{} for _ in batches])
        wanted = [wanted_rows(batch, self._stores) for batch in batches]
        if self._gathers is not None:
            return BatchesLookup(batches, wanted)
        rows = None if asked is None else asked.graph.rows_of([batch.subgraph for batch in batches])
        if asked is not None and rows is not None:
            return BatchesLookup(batches, wanted, Lookup(self.collector, wanted, asked.plan, rows))
        places = [self.collector.places_in(batch.subgraph, of) for batch, of in zip(batches, wanted, strict=True)]
        return BatchesLookup(batches, wanted, self.collector.start(wanted, places, repeats=self._repeats))

    async def write(self, begun: BatchesLookup, place: Place, of: range) -> Sequence[Rows]:
        """The rows of some batches of a lookup, by store, written once, where ``place`` says they are wanted.

        The same of edges that are unwritten. Rows of batches that stay on a GPU come as in a local loader.
        """
        batches, wanted = begun.batches[of.start : of.stop], begun.wanted[of.start : of.stop]
        if self._stores and self._gathers is not None:
            begun_each = [
                self._gathers.begin(ids, f"batch {batch.index} of epoch {batch.epoch}")
                for batch, ids in zip(batches, wanted, strict=True)
            ]
            others = [
                self.collector.gather_each({name: of for name, of in ids.items() if name not in found})
                for ids, (found, _) in zip(wanted, begun_each, strict=True)
            ]
            for _, gathered in begun_each:
                if gathered is not None:
                    gathered.raise_fault()  # waits once, for all stores
            return [found | rest for (found, _), rest in zip(begun_each, others, strict=True)]
        placed = self._place(batches, self.collector.unwritten(wanted), place)
        if begun.lookup is not None:
            await begun.lookup.fill(placed, of.start)
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

    def use_copies(self, copies: Iterable[CacheHandle]) -> None:
        """See ``FeatureCollector.use_copies``; those of before are used on where these cannot be mapped.

        They may be gone by now, as whoever keeps them has others, and is about to tell of these.
        """
        try:
            opened = open_copies(copies)
        except StorageError as error:
            logger.info("row_cache: copies of rows that cannot be mapped are not used: %s", error)
        else:
            self._sampler.collector.use_copies(opened)

    @property
    def keeps_rows(self) -> bool:
        """Whether rows that others answer are kept for later batches."""
        return self._sampler.collector.keeps_rows

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
        """Some batches, each without the rows that were looked up for it, and these, see ``PartitionedSampler.write``.

        Other partitions are asked for all of them at once. ``sampling`` gives what ``sample`` does, where that was
        begun before, by who counts its time.
        """
        return await self.write(await self.begin(epoch, indices, run, sampling), place, range(len(indices)))

    async def begin(
        self, epoch: int, indices: Sequence[int], run: int, sampling: Awaitable[list[SampledBatch]] | None = None
    ) -> BatchesLookup:
        """Some batches whose rows are asked for, see ``make_in``."""
        self._name_in_trace(epoch, indices)
        started = perf_counter_ns()
        asked = self._sampler.graph_with_rows() if sampling is None else None
        batches = await (self.sample(epoch, indices, run, asked) if sampling is None else sampling)
        sampled = perf_counter_ns()
        if asked is not None:
            sampled = asked.graph.sampled_at_ns or sampled
        begun = self._sampler.begin_lookup(batches, asked)
        begun.begun_ns, begun.sampled_ns = started, sampled
        begun.uncounted_ns = sampled - started if sampling is None else 0, perf_counter_ns() - sampled
        return begun

    async def ask(self, epoch: int, indices: Sequence[int], run: int) -> BatchesLookup:
        """Some batches, for whose rows nobody has to be waited for any more, see ``make_in``."""
        begun = await self.begin(epoch, indices, run)
        if begun.lookup is not None:
            await begun.lookup.end()
        begun.uncounted_ns = begun.uncounted_ns[0], perf_counter_ns() - begun.sampled_ns
        return begun

    async def write(self, begun: BatchesLookup, place: Place, of: range) -> list[tuple[SampledBatch, Rows]]:
        """Some of these batches with their rows, see ``make_in``; each once, the first ones first."""
        batches = begun.batches[of.start : of.stop]
        if tracer() is not None:
            self._name_in_trace(batches[0].epoch, [batch.index for batch in batches])
        started = perf_counter_ns()
        rows = await self._sampler.write(begun, place, of)
        made = list(zip(batches, rows, strict=True))
        (sample_ns, rows_ns), begun.uncounted_ns = begun.uncounted_ns, (0, 0)
        self.counts.add(made, sample_ns, rows_ns + perf_counter_ns() - started)
        self.counts.follow_exchanges(self._peers.times)
        self.counts.follow_recent(self._sampler.collector.recent_bytes)
        trace_stages(begun.begun_ns, begun.sampled_ns)
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

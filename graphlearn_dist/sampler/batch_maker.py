"""One mini-batch from its name (epoch, index): the same code whether the graph is here or with several owners."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, TypeAlias, TypeVar

import torch

from ..data.columns import NODE_COLUMN, columns_among
from ..data.schema import EDGE_FEATURE, NODE_FEATURE, NODE_LABEL, GraphSchema, store_name
from ..errors import InvalidArgumentError
from ..messages import SampledBatch
from ..telemetry import BatchCounts
from ..utils.coroutines import gather_all
from .adjacency import with_adjacency
from .base import EdgeSamplerInput, NodeSamplerInput, SamplingConfig, SamplingType
from .device.device_graph import DeviceGraph
from .epochs.schedule import SeedSchedule
from .hgt import HgtTask
from .tasks import GraphAccess, LinkTask, NodeTask, Sampled, SubgraphTask, Task, TaskResult

T = TypeVar("T")
Sample: TypeAlias = Callable[..., Awaitable[list[Sampled]]]  # see ``GraphAccess.sample``

_EDGES = "edge_index"


def make_schedule(
    sampler_input: NodeSamplerInput | EdgeSamplerInput, config: SamplingConfig, near: torch.Tensor | None = None
) -> SeedSchedule:
    """The schedule of a loader; where ``config.locality`` asks for it, ``near`` is what ``order_of_seeds`` gives."""
    if (near is None) != (config.locality is None):
        raise InvalidArgumentError("locality: expected an order of the seeds with it, and none without")
    num_stretches = config.locality or 1
    return SeedSchedule(
        len(sampler_input), config.batch_size, config.shuffle, config.drop_last, config.seed, near, num_stretches
    )


def make_task(
    inputs: NodeSamplerInput | EdgeSamplerInput, schema: GraphSchema, config: SamplingConfig, num_threads: int = 1
) -> Task:
    """The task of a config; ``num_threads`` of what it computes itself.

    Raises:
        InvalidArgumentError: links where nodes were expected or the other way round, a type that the data set does not
            have, or times without ``temporal_strategy`` (or that without times).
    """
    own_times = inputs.time is None and None not in (config.temporal_strategy, config.own_times)
    if not own_times and (inputs.time is None) != (config.temporal_strategy is None):
        raise InvalidArgumentError(
            f"time, temporal_strategy: expected both or none, got {'no ' if inputs.time is None else ''}times and "
            f"{config.temporal_strategy!r}"
        )
    match config.sampling_type, inputs:
        case SamplingType.NODE, NodeSamplerInput() if config.induced:
            return SubgraphTask(inputs, schema)
        case SamplingType.NODE, NodeSamplerInput():
            return NodeTask(inputs, schema, own_times=own_times)
        case SamplingType.SUBGRAPH, NodeSamplerInput():
            return SubgraphTask(inputs, schema)
        case SamplingType.HGT, NodeSamplerInput():
            return HgtTask(inputs, schema, config, num_threads)
        case SamplingType.LINK, EdgeSamplerInput():
            return LinkTask(inputs, schema, config)
    raise InvalidArgumentError(
        f"sampler_input: expected {'links' if config.sampling_type is SamplingType.LINK else 'nodes'} to sample "
        f"{config.sampling_type.plural}, got {type(inputs).__name__}"
    )


class BatchMaker:
    """Makes the batches of one loader.

    Args:
        graph: answers for the graph.
        schema: types and counts of the data set.
        sampler_input: the loader's input, checked.
        config: how to sample.
        near: see ``make_schedule``.
        counts: where the time of finding seeds is counted, if anywhere.
        leaves_edges: those of large batches may be left unwritten where the task does not read them, see
            ``unwritten_edges``.
        num_threads: of what is computed for a batch beside the graph's answers; a batch does not depend on them.

    Raises:
        InvalidArgumentError: input and config do not belong together, or HGT samples are wanted of a graph on a GPU.
    """

    def __init__(
        self,
        graph: GraphAccess,
        schema: GraphSchema,
        sampler_input: NodeSamplerInput | EdgeSamplerInput,
        config: SamplingConfig,
        near: torch.Tensor | None = None,
        counts: BatchCounts | None = None,
        *,
        leaves_edges: bool = False,
        num_threads: int = 1,
    ) -> None:
        self.schedule = make_schedule(sampler_input, config, near)
        self._graph = graph
        self._sample: Sample = graph.sample
        self._counts = BatchCounts() if counts is None else counts
        self._task = make_task(sampler_input, schema, config, num_threads)
        if config.sampling_type is SamplingType.HGT and isinstance(graph, DeviceGraph):
            raise InvalidArgumentError(
                f"data: expected graphs in host memory (mode 'CPU') with num_samples, got some on {graph.device}"
            )
        self._input_id = sampler_input.input_id if isinstance(sampler_input, NodeSamplerInput) else None
        self._schema = schema
        self._is_compressed = config.edge_format == "adj_t"
        self._leaves_edges = leaves_edges and not self._is_compressed and not self._task.reads_edges

    def sampling_by(self, sample: Sample) -> BatchMaker:
        """The same, whose neighborhoods are sampled by this in place of the graph's ``sample``."""
        other = copy(self)
        other._sample = sample
        return other

    async def make(self, epoch: int, index: int, run: int = 0) -> SampledBatch:
        """Batch ``index`` of ``epoch`` without the rows that are looked up for it (see ``wanted_rows``)."""
        begun = perf_counter_ns()
        return await self.make_of(self.schedule.positions(epoch, index), epoch, index, run, begun=begun)

    async def make_together(self, epoch: int, indices: Sequence[int], run: int = 0) -> list[SampledBatch]:
        """Some batches of ``epoch``, as ``make`` does each; other processes are asked for all of them at once."""
        if len(indices) == 1:
            return [await self.make(epoch, indices[0], run)]
        task, graph, begun = self._task, self._graph, perf_counter_ns()
        named = [(self.schedule.positions(epoch, index), index) for index in indices]
        seeds = await self._each(task.begin(graph, positions, epoch=epoch, index=index) for positions, index in named)
        self._counts.add_seeds(perf_counter_ns() - begun)
        sampled = await self._sample(
            [(of_batch.lists, epoch, index) for of_batch, (_, index) in zip(seeds, named, strict=True)],
            leaves_edges=self._leaves_edges,
        )
        made = await self._each(task.finish(graph, *each) for each in zip(seeds, sampled, strict=True))
        return [self._batch(of, *name, epoch, run) for of, name in zip(made, named, strict=True)]

    async def make_of(
        self, positions: torch.Tensor, epoch: int, index: int, run: int = 0, *, begun: int = 0
    ) -> SampledBatch:
        """The batch of the seeds at some positions of the input, with the draws of (epoch, index).

        ``begun``: when they were looked for, by ``perf_counter_ns``; now where it is 0.
        """
        # The same steps as of several, without the loops: they cost a small batch a twentieth of its time.
        task, graph = self._task, self._graph
        begun = begun or perf_counter_ns()
        seeds = await task.begin(graph, positions, epoch=epoch, index=index)
        self._counts.add_seeds(perf_counter_ns() - begun)
        (sampled,) = await self._sample(((seeds.lists, epoch, index),), leaves_edges=self._leaves_edges)
        return self._batch(await task.finish(graph, seeds, sampled), positions, index, epoch, run)

    async def _each(self, steps: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """What a step of each of several batches gives."""
        if self._task.asks:
            return await gather_all(steps)
        return [await step for step in steps]  # none of several waits

    def _batch(self, made: TaskResult, positions: torch.Tensor, index: int, epoch: int, run: int) -> SampledBatch:
        node_rows, edge_rows = (None,) * len(made.subgraph.nodes), (None,) * len(made.subgraph.edge_index)
        subgraph = with_adjacency(made.subgraph, self._schema) if self._is_compressed else made.subgraph
        return SampledBatch(
            run=run,
            epoch=epoch,
            index=index,
            seed_type=self._task.seed_type,
            input_positions=positions if self._input_id is None else self._input_id[positions],
            subgraph=subgraph,
            node_features=node_rows,
            node_labels=node_rows,
            edge_features=edge_rows,
            seed_times=made.seed_times,
            links=made.links,
            mapping=made.mapping,
        )


def wanted_rows(batch: SampledBatch, stores: frozenset[str]) -> dict[str, torch.Tensor]:
    """Which ids (int64) of which stores a batch needs."""
    wanted = {}
    for node_type, nodes in enumerate(batch.subgraph.nodes):
        for kind in (NODE_FEATURE, NODE_LABEL):
            if (name := store_name(kind, node_type)) in stores:
                wanted[name] = nodes
    for edge_type, edge_ids in enumerate(batch.subgraph.edge_ids):
        if edge_ids is not None and (name := store_name(EDGE_FEATURE, edge_type)) in stores:
            wanted[name] = edge_ids
    for column in columns_among(stores):
        of_nodes = column.kind == NODE_COLUMN
        ids = (batch.subgraph.nodes if of_nodes else batch.subgraph.edge_ids)[column.type_index]
        if ids is not None:
            wanted[column.store] = ids
    return wanted


def unwritten_edges(batch: SampledBatch) -> dict[str, torch.Tensor]:
    """The edges of a batch that are still to be written, by a name for each edge type."""
    pairs = batch.subgraph.edge_index
    unwritten = enumerate(batch.subgraph.unwritten)
    return {store_name(_EDGES, i): pairs[i] for i, runs in unwritten if runs is not None}


def write_edges(batch: SampledBatch, places: Mapping[str, torch.Tensor]) -> None:
    """Writes them to these places, by the same names."""
    for i, runs in enumerate(batch.subgraph.unwritten):
        if runs is not None:
            runs.write(places[store_name(_EDGES, i)])


def with_edges(batch: SampledBatch, places: Mapping[str, torch.Tensor]) -> SampledBatch:
    """The batch with the edges that were, or will be, written to these places; itself where it lacks none."""
    if not batch.subgraph.unwritten:
        return batch
    edges = zip(batch.subgraph.edge_index, batch.subgraph.unwritten, strict=True)
    pairs = [pair if runs is None else places[store_name(_EDGES, i)] for i, (pair, runs) in enumerate(edges)]
    return replace(batch, subgraph=replace(batch.subgraph, edge_index=tuple(pairs), unwritten=()))


def rows_by_store(batch: SampledBatch) -> dict[str, torch.Tensor]:
    """The looked-up rows of a batch by the name of their store."""
    kinds = ((NODE_FEATURE, batch.node_features), (NODE_LABEL, batch.node_labels), (EDGE_FEATURE, batch.edge_features))
    found = {store_name(kind, i): rows for kind, by in kinds for i, rows in enumerate(by) if rows is not None}
    return found | batch.columns


def with_rows(batch: SampledBatch, rows: Mapping[str, torch.Tensor]) -> SampledBatch:
    """The batch with these looked-up rows (by the name of their store) and no others.

    Edges that were unwritten are those among ``rows``, by the names of ``unwritten_edges``.
    """
    batch = with_edges(batch, rows)

    def by_type(kind: str, old: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        return tuple([rows.get(store_name(kind, i)) for i in range(len(old))])  # a generator is called for each entry

    return replace(
        batch,
        node_features=by_type(NODE_FEATURE, batch.node_features),
        node_labels=by_type(NODE_LABEL, batch.node_labels),
        edge_features=by_type(EDGE_FEATURE, batch.edge_features),
        columns={column.store: rows[column.store] for column in columns_among(frozenset(rows))},
    )

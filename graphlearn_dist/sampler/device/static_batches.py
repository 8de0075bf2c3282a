"""Batches of fixed shapes by a request that lies on the device: nobody on the host reads a number of one.

A request is int64 ``[3]``: seed, epoch, batch index. When a CUDA graph that makes a batch is replayed, it makes the one
that the request then names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from ... import _C
from ...data.columns import EDGE_COLUMN, NODE_COLUMN, columns_among
from ...data.dataset import Dataset
from ...data.device.device_topology import DeviceTopology
from ...data.device.stream_uses import StreamUses, between_captures
from ...data.feature import Feature
from ...data.schema import EDGE_FEATURE, NODE_FEATURE, NODE_LABEL, store_name
from ...errors import InvalidArgumentError
from ...messages import SampledBatch, Subgraph
from ...utils.device import device_number
from ..base import NodeSamplerInput, SamplingConfig, SamplingType
from ..batch_maker import wanted_rows, with_rows
from ..batches import LocalBatches, make_plan
from ..epochs.schedule import SeedSchedule
from ..plan import SamplingPlan
from .device_graph import check_graph_status, device_of, memory_of, native_edge_types, native_graphs
from .padding import BatchSizes, PaddedBatch, StaticShapes, overflow_error, pad_batch, padded_plan

_NO_FAILURE = -1


def new_request(seed: int, device: torch.device) -> torch.Tensor:
    """A request of no batch yet."""
    request = torch.full((3,), -1, dtype=torch.int64, device=device)
    request[:1].fill_(seed)
    return request


def ask(request: torch.Tensor, epoch: int, index: int) -> None:
    """Makes it the request of a batch, on the caller's current stream. Launches carry the numbers: nobody waits."""
    request[1:2].fill_(epoch)
    request[2:].fill_(index)


class StaticBatches(Protocol):
    """Makes the batches of one loader, padded. Thread-safe."""

    @property
    def device(self) -> torch.device:
        """Where requests lie and batches are made."""

    def sample(self, request: torch.Tensor) -> PaddedBatch:
        """The batch that is asked for; where a GPU makes it, without waiting for it."""

    def check(self) -> None:
        """Waits for the batches that were asked for.

        Raises:
            BatchOverflowError: one of them did not fit, and came as a batch of padding alone.
            PartitionFormatError, UnknownIdError: likewise, one of them has met a damaged graph.
        """


class HostStaticBatches:
    """Batches that the host samples, and pads.

    Args:
        batches: what makes them.
        plan: how they are sampled.
        sizes: what they are padded to.
    """

    def __init__(self, batches: LocalBatches, plan: SamplingPlan, sizes: BatchSizes) -> None:
        self.device = torch.device("cpu")
        self._batches = batches
        self._schema = plan.schema
        self._sizes = sizes

    def sample(self, request: torch.Tensor) -> PaddedBatch:
        """See ``StaticBatches``; a batch that does not fit raises here."""
        _, epoch, index = request.tolist()
        return pad_batch(self._batches.make(epoch, index), self._schema, self._sizes)

    def check(self) -> None:
        """See ``StaticBatches``."""


class DeviceStaticBatches:
    """Batches that a GPU samples, its seeds and its rows included, on the caller's current stream.

    Memory of a batch comes from torch's allocator, as much as the largest batch takes; all batches of a loader take as
    much. While a stream is captured that is the memory of the captured graph.

    Args:
        plan: how to sample.
        topologies: by edge type of the schema, on ``device``.
        device: where batches are made. On the CPU device the host runs the kernels' bodies, one after the other.
        inputs: the loader's input nodes.
        schedule: which of them belong to which batch.
        stores: rows to look up, by the name of their store. Those in host memory are copied to pinned memory.
        shapes: how large batches are.

    Raises:
        UnknownIdError: a store lacks rows that a batch may ask for.
    """

    def __init__(
        self,
        plan: SamplingPlan,
        topologies: Sequence[DeviceTopology],
        device: torch.device,
        inputs: NodeSamplerInput,
        schedule: SeedSchedule,
        stores: Mapping[str, Feature],
        shapes: StaticShapes,
    ) -> None:
        schema = plan.schema
        self.device = device
        self._plan = plan
        self._schedule = schedule
        self._seed_type = schema.node_type_index(inputs.input_type, "input_nodes")
        self._graphs = native_graphs(plan, topologies)
        seeds = (self._seed_type, schedule.batch_size)
        self._native = padded_plan(plan, native_edge_types(plan, topologies), seeds, shapes.bounds(schema))
        self._sizes = BatchSizes.of(self._native, schedule.batch_size)
        self._inputs = inputs.node.contiguous().to(device)
        self._input_id = None if inputs.input_id is None else inputs.input_id.contiguous().to(device)
        self._times = None if inputs.time is None else inputs.time.contiguous().to(device)
        names = {store_name(EDGE_FEATURE, i): topology.num_edge_ids for i, topology in enumerate(topologies)}
        for kind in (NODE_FEATURE, NODE_LABEL):
            names |= {store_name(kind, i): count for i, count in enumerate(schema.num_nodes)}
        counts = {NODE_COLUMN: schema.num_nodes, EDGE_COLUMN: [topology.num_edge_ids for topology in topologies]}
        for column in columns_among(frozenset(stores)):
            names[column.store] = counts[column.kind][column.type_index]
        self._rows = {
            name: (stores[name].on_device(device, num_ids), stores[name].dtype)
            for name, num_ids in names.items()
            if name in stores
        }
        self._failure = torch.full((3,), _NO_FAILURE, dtype=torch.int64, device=device)
        self._hops = _HopCounters(self._native, device)
        given = (self._inputs, self._input_id, self._times, self._failure, *self._hops.memory)
        read = [*memory_of(topologies), *(one for one in given if one is not None)]
        self._uses = StreamUses(self, device, read, keeping=topologies)

    def sample(self, request: torch.Tensor) -> PaddedBatch:
        """See ``StaticBatches``."""
        native = self._native
        result = self._empty(native.num_bytes)
        native.launch_padded(
            self._graphs,
            self._plan.native_draws,
            self._inputs,
            self._times,
            self._schedule.shuffle,
            request,
            self._failure,
            result,
            self._empty(native.num_scratch_bytes),
            device_number(self.device),
            self._uses.note(),
        )
        padded = self._view(result)
        wanted = wanted_rows(padded.batch, frozenset(self._rows))
        found = {}
        for name, ids in wanted.items():
            rows, dtype = self._rows[name]
            found[name] = rows.gather_or_zeros(ids, dtype)
        return replace(padded, batch=with_rows(padded.batch, found))

    def check(self) -> None:
        """See ``StaticBatches``."""
        if self.device.type == "cuda":
            with between_captures():  # who waits for all of a GPU would fail them
                torch.cuda.synchronize(self.device)  # batches may be under way on any stream
        status, epoch, index = self._failure.tolist()
        if status == _NO_FAILURE:
            return
        self._failure.fill_(_NO_FAILURE)
        check_graph_status(status, self._plan.schema)
        raise overflow_error(self._plan.schema, self._sizes, status - _C.BATCH_OVERFLOW, epoch, index)

    def _view(self, result: torch.Tensor) -> PaddedBatch:
        """The padded batch that lies in a block of results; nothing is copied."""
        native, plan = self._native, self._plan
        node_sizes, edge_sizes, (positions, times, seed_mask) = native.padded
        count = self._sizes.num_seeds

        def part(first: int, size: int) -> torch.Tensor:
            return result[first : first + size]

        def mask(first: int, size: int) -> torch.Tensor:
            return part(first, -(-size // 8)).view(torch.bool)[:size]

        nodes = [(first, trees, size) for (first, trees, _), (size, _) in zip(native.nodes, node_sizes, strict=True)]
        edges = [(*firsts[:2], size) for firsts, (size, _) in zip(native.edges, edge_sizes, strict=True)]
        subgraph = Subgraph(
            nodes=tuple(part(first, size) for first, _, size in nodes),
            edge_index=tuple(part(rows, 2 * size).view(2, size) for rows, _, size in edges),
            edge_ids=tuple(part(ids, size) if plan.with_edge_ids else None for _, ids, size in edges),
            num_sampled_nodes=((),) * len(nodes),
            num_sampled_edges=((),) * len(edges),
            trees=tuple(part(trees, size) if plan.disjoint else None for _, trees, size in nodes),
        )
        num_nodes, num_edges = self._hops.differences(result)
        no_nodes, no_edges = (None,) * len(nodes), (None,) * len(edges)
        batch = SampledBatch(
            run=0,
            epoch=-1,
            index=-1,
            seed_type=self._seed_type,
            input_positions=self._named(part(positions, count)),
            subgraph=subgraph,
            node_features=no_nodes,
            node_labels=no_nodes,
            edge_features=no_edges,
            seed_times=None if self._times is None else part(times, count),
        )
        return PaddedBatch(
            batch=batch,
            node_masks=tuple(mask(first, size) for size, first in node_sizes),
            edge_masks=tuple(mask(first, size) for size, first in edge_sizes),
            seed_mask=mask(seed_mask, count),
            num_sampled_nodes=num_nodes,
            num_sampled_edges=num_edges,
        )

    def _named(self, positions: torch.Tensor) -> torch.Tensor:
        """What the input calls the seeds at some positions; padding stays what it is."""
        if self._input_id is None or not self._input_id.numel():
            return positions
        return torch.where(positions < 0, positions, self._input_id[positions.clamp(min=0)])

    def _empty(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes // 8, dtype=torch.int64, device=self.device)


class _HopCounters:
    """Reads how many nodes and edges each hop added from a batch's counters, all types at once, on the device."""

    def __init__(self, native: _C.DeviceBatchPlan, device: torch.device) -> None:
        node_counters = [[0, *counters] for *_, counters in native.nodes]  # counter 0 is 0: seeds come to none
        edge_counters = [counters for *_, counters in native.edges]
        self._num_node_types = len(node_counters)
        self._lengths = [len(counters) - 1 for counters in node_counters + edge_counters]
        before = [number for counters in node_counters + edge_counters for number in counters[:-1]]
        after = [number for counters in node_counters + edge_counters for number in counters[1:]]
        self._before, self._after = torch.tensor(before, device=device), torch.tensor(after, device=device)
        self.memory = self._before, self._after

    def differences(self, counters: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """By node type int64 ``[num_hops + 1]``, by edge type ``[num_hops]``."""
        added = counters[self._after] - counters[self._before]
        parts = torch.split(added, self._lengths)
        return parts[: self._num_node_types], parts[self._num_node_types :]


def make_static_batches(
    dataset: Dataset, inputs: NodeSamplerInput, config: SamplingConfig, batches: LocalBatches, shapes: StaticShapes
) -> StaticBatches:
    """Padded batches of a loader, made where the graphs are sampled.

    Args:
        dataset: graph and features, held whole.
        inputs: the loader's input nodes, checked.
        config: how to sample.
        batches: the loader's batches without padding.
        shapes: how large batches are.

    Raises:
        InvalidArgumentError: the loader is none of neighborhoods, or shapes do not fit the data set.
    """
    if config.sampling_type is not SamplingType.NODE:
        raise InvalidArgumentError(
            f"static_shapes: expected a loader of neighborhoods of nodes, got one of {config.sampling_type.name}"
        )
    plan, device = make_plan(dataset, config), device_of(dataset)
    graphs = dataset.graphs()
    ordered = [graphs[edge_type] for edge_type in plan.schema.edge_types]
    if device is None:
        seeds = plan.schema.node_type_index(inputs.input_type, "input_nodes"), config.batch_size
        edge_types = native_edge_types(plan, [graph.topo for graph in ordered])
        native = padded_plan(plan, edge_types, seeds, shapes.bounds(plan.schema))
        return HostStaticBatches(batches, plan, BatchSizes.of(native, config.batch_size))
    if config.locality is not None:
        raise InvalidArgumentError("locality: expected None with static_shapes on a GPU, which finds the seeds itself")
    stores = dataset.stores() if config.collect_features else {}
    topologies = [graph.on_device() for graph in ordered]
    if inputs.time is None and config.temporal_strategy is not None:  # the nodes' own
        inputs = replace(inputs, time=dataset.node_times[inputs.input_type][inputs.node])
    return DeviceStaticBatches(plan, topologies, device, inputs, batches.schedule, stores, shapes)

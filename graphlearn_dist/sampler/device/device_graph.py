"""A graph in memory that a GPU reads, as batches are made from it there: those of the CPU, bit by bit."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import torch

from ... import _C
from ...data.dataset import Dataset
from ...data.device.device_topology import DeviceTopology
from ...data.device.stream_uses import StreamUses
from ...data.schema import GraphSchema, earliest
from ...errors import InvalidArgumentError, PartitionFormatError, UnknownIdError
from ...messages import Subgraph
from ...typing import NodeType
from ...utils.device import device_number
from ...utils.device_exchange import Reading, sent
from ..links.negative_slots import FilledSlots, NegativeSlots
from ..plan import SamplingPlan
from ..tasks import DrawnNeighbors, InducedEdges, NamedSeeds, NeighborDraw, Sampled, SeedList
from .device_induced import induced_on_device
from .device_negatives import DeviceNegatives

_MAX_PLANS = 16  # shapes of seeds that are kept: full batches, and the last one of an epoch


class DeviceGraph:
    """A ``GraphAccess`` whose batches are sampled by a GPU, on the caller's current stream. Thread-safe.

    A batch is one chain of kernels; the host waits once, at its end, for the sizes and for what went wrong. Memory
    comes from torch's allocator, with room for the largest batch that the fan-outs allow, which the tensors of a batch
    keep.

    Args:
        plan: how to sample.
        topologies: by edge type of the schema, on ``device``.
        device: where batches are made. On the CPU device the host runs the kernels' bodies, one after the other.
        node_times: of the node types that have times, int64 ``[num_nodes]`` each; for negatives.
    """

    def __init__(
        self,
        plan: SamplingPlan,
        topologies: Sequence[DeviceTopology],
        device: torch.device,
        node_times: Mapping[NodeType | None, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        self.plan = plan
        self.device = device
        self._graphs = native_graphs(plan, topologies)
        self._edge_types = native_edge_types(plan, topologies)
        self._node_times = [node_times.get(node_type) for node_type in plan.schema.node_types]
        self._earliest_nodes = [
            None if times is None or times.numel() == 0 else earliest(times) for times in self._node_times
        ]
        self._uses = StreamUses(self, device, memory_of(topologies), keeping=topologies)
        self._negatives = DeviceNegatives(self._graphs, plan.schema, self._node_times, device, self._uses)
        self._lock = threading.Lock()
        self._plans: dict[tuple[tuple[int, int, bool], ...], _C.DeviceBatchPlan] = {}

    async def draw_neighbors(self, draws: Sequence[NeighborDraw]) -> list[DrawnNeighbors]:
        """An ``InvalidArgumentError``: single hops are the host's."""
        raise InvalidArgumentError("hard: expected None for a graph on a GPU, which draws no hard negatives")

    async def sample(self, wanted: Sequence[NamedSeeds], *, leaves_edges: bool = False) -> list[Sampled]:
        """See ``GraphAccess``; the tensors lie on the device."""
        return [self._sample(*of_batch) for of_batch in wanted]

    def _sample(self, seeds: Sequence[SeedList], epoch: int, index: int) -> Sampled:
        native = self._plan_for(tuple((part.node_type, part.ids.numel(), part.unique) for part in seeds))
        result = self._empty(native.num_bytes)
        times = [part.times for part in seeds if part.times is not None]
        counter = torch.tensor([self.plan.seed, epoch, index])
        ids = [part.ids for part in seeds]
        moved_counter, *moved = sent([counter, *ids, *([torch.cat(times)] if times else ())], self.device)
        native.launch(
            self._graphs,
            self.plan.native_draws,
            moved[: len(ids)],
            moved[len(ids)] if times else None,
            moved_counter,
            result,
            self._empty(native.num_scratch_bytes),
            device_number(self.device),
            self._uses.note(),
        )
        # The one time that the host waits.
        *counters, bad_seed = Reading(result[: native.num_counters + 1]).wait()
        check_graph_status(bad_seed, self.plan.schema)
        if bad_seed >= 0:
            bad = int(torch.cat(moved[: len(ids)])[bad_seed])
            raise UnknownIdError(f"input_nodes: node id {bad}, at position {bad_seed}, is outside the graph")
        local_ids = tuple(result[first : first + count] for first, count in native.local_ids)
        return self._subgraph(native, result, counters), local_ids

    def _subgraph(self, native: _C.DeviceBatchPlan, result: torch.Tensor, counters: list[int]) -> Subgraph:
        nodes, trees, num_nodes = [], [], []
        for first, first_tree, numbers in native.nodes:
            totals = [counters[number] for number in numbers]
            nodes.append(result[first : first + totals[-1]])
            trees.append(result[first_tree : first_tree + totals[-1]] if self.plan.disjoint else None)
            num_nodes.append((totals[0], *_steps(totals)))
        edge_index, edge_ids, num_edges = [], [], []
        for first, first_id, numbers in native.edges:
            totals = [counters[number] for number in numbers]
            edge_index.append(result[first : first + 2 * totals[-1]].view(2, totals[-1]))
            edge_ids.append(result[first_id : first_id + totals[-1]] if self.plan.with_edge_ids else None)
            num_edges.append(_steps(totals))
        return Subgraph(
            nodes=tuple(nodes),
            edge_index=tuple(edge_index),
            edge_ids=tuple(edge_ids),
            num_sampled_nodes=tuple(num_nodes),
            num_sampled_edges=tuple(num_edges),
            trees=tuple(trees),
        )

    def _plan_for(self, seeds: tuple[tuple[int, int, bool], ...]) -> _C.DeviceBatchPlan:
        plan = self.plan
        with self._lock:
            if seeds not in self._plans:
                if len(self._plans) == _MAX_PLANS:
                    del self._plans[next(iter(self._plans))]
                self._plans[seeds] = _C.DeviceBatchPlan(
                    list(plan.schema.num_nodes),
                    self._edge_types,
                    seeds,
                    plan.fanouts,
                    plan.with_edge_ids,
                    plan.disjoint,
                )
            return self._plans[seeds]

    def _empty(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes // 8, dtype=torch.int64, device=self.device)

    async def has_edges(self, edge_type: int, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See ``GraphAccess``; the answer lies where the sources do."""
        return self._negatives.has_edges(edge_type, sources, targets)

    async def fill_negatives(self, edge_type: int, slots: NegativeSlots) -> FilledSlots:
        """See ``GraphAccess``."""
        return self._negatives.fill(edge_type, slots)

    def earliest_node(self, node_type: int) -> int | None:
        """See ``GraphAccess``."""
        return self._earliest_nodes[node_type]

    async def node_times(self, node_type: int, ids: torch.Tensor) -> torch.Tensor:
        """See ``GraphAccess``; the times lie where the ids do."""
        times = self._node_times[node_type]
        if times is None:
            raise InvalidArgumentError(f"node_type: expected one with times, got {node_type}")
        return times[ids.cpu()].to(ids.device)

    async def induced(self, nodes: tuple[torch.Tensor, ...]) -> tuple[InducedEdges, ...]:
        """See ``GraphAccess``; the tensors lie on the device."""
        plan, stream = self.plan, self._uses.note()
        return induced_on_device(
            self._graphs, plan.schema, nodes, self.device, stream, with_edge_ids=plan.with_edge_ids
        )


def check_graph_status(status: int, schema: GraphSchema) -> None:
    """Refuses a batch whose status says that it has met a damaged graph.

    Raises:
        PartitionFormatError: the offsets of a row are not in order.
        UnknownIdError: a neighbor is no node.
    """
    for first, error, what in (
        (_C.BATCH_BAD_ROW, PartitionFormatError, "indptr: a batch met offsets that are not in order within the edges"),
        (_C.BATCH_BAD_NEIGHBOR, UnknownIdError, "indices: a batch met a neighbor that is outside the graph"),
    ):
        if first <= status < first + len(schema.edge_types):
            edge_type = schema.edge_types[status - first]
            typed = "" if edge_type is None else f", edges of type {edge_type!r}"
            raise error(f"{what}{typed}; the files of the graph are damaged (`graphlearn-dist verify` reads them all)")


class EdgeCounts(Protocol):
    """What bounds how many edges of a type a batch has."""

    @property
    def edge_count(self) -> int:
        """Edges of the graph."""

    @property
    def max_degree(self) -> int:
        """Edges of one node at most."""


def native_graphs(plan: SamplingPlan, topologies: Sequence[DeviceTopology]) -> list[_C.DeviceCsr]:
    """The native graphs that a plan samples from, by edge type."""
    return [
        topology.handler(weighted=draw.reads_weights) for topology, draw in zip(topologies, plan.draws, strict=True)
    ]


def memory_of(topologies: Sequence[DeviceTopology]) -> list[torch.Tensor]:
    """The arrays that the native graphs of topologies read."""
    return [array for topology in topologies for array in topology.memory]


def native_edge_types(plan: SamplingPlan, edges: Sequence[EdgeCounts]) -> list[tuple[int, int, int, int, bool]]:
    """By edge type what the size of a batch depends on, as ``_C.DeviceBatchPlan`` takes it."""
    return [
        (*spec, counts.edge_count, counts.max_degree, draw.replace)
        for spec, counts, draw in zip(plan.schema.edge_specs, edges, plan.draws, strict=True)
    ]


def _steps(totals: Sequence[int]) -> tuple[int, ...]:
    return tuple(after - before for before, after in itertools.pairwise(totals))


def device_of(dataset: Dataset) -> torch.device | None:
    """The GPU that all graphs of a data set are sampled on; None where the CPU samples.

    Raises:
        InvalidArgumentError: graphs are on several devices, or only some are on one.
    """
    devices = {graph.sampling_device for graph in dataset.graphs().values()}
    if len(devices) > 1:
        raise InvalidArgumentError(
            f"device: expected all graphs of a data set on one device, got {sorted(map(str, devices))}"
        )
    return devices.pop() if devices else None

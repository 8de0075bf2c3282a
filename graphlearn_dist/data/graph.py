"""Graph: a topology ready to be sampled, whole or one partition's rows."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import torch

from .. import _C
from ..errors import InvalidArgumentError
from ..utils.device import gpu_number
from ..utils.shown import shown
from . import shared_memory
from .device.device_group import DeviceGroup, gpus_by_group, group_of, usable_gpu, usable_groups
from .device.device_topology import DeviceTopology, OnGpu, Placement
from .handles import GraphHandle
from .huge_pages import read_at_random
from .topology import Topology as Topology


class RowBook(Protocol):
    """Which rows of a graph one of its partitions holds; a ``partition.PartitionBook``."""

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        """Owners of ids."""

    @property
    def partition_idx(self) -> int:
        """Whose rows they are."""

    @property
    def num_ids(self) -> int:
        """Rows of all partitions."""

    @property
    def id2index(self) -> Any:
        """Rows of ids, by indexing."""


def named_gpu(number: int) -> torch.device:
    """A GPU as torch names it."""
    return torch.device("cuda", number)


class Graph:
    """A topology ready to be sampled.

    Args:
        topo: the edges.
        mode: ``"CPU"``, ``"ZERO_COPY"`` (pinned host memory that the GPU reads) or ``"CUDA"`` (the GPU's memory).
            Without a device all of them live in host memory, and the CPU samples.
        device: the GPU that local loaders sample on, in builds with CUDA: its number, or as torch names it.
        row_book: which nodes' rows these are, in a partition; None where row *v* is that of node *v*.
        device_group_list: GPUs by group, for edges of mode ``"CUDA"`` that one GPU has no room for: each group holds
            the edges once, an equal share on each of its GPUs, and ``device`` reads those of the others over NVLink
            or PCIe. Without groups ``device`` holds them all.

    Raises:
        InvalidArgumentError: there is no such mode or GPU; the groups are no groups of GPUs, or share one; ``device``
            is of none of the groups, or cannot read the memory of one in its own.
    """

    def __init__(
        self,
        topo: Topology,
        mode: str = "ZERO_COPY",
        device: torch.device | str | int | None = None,
        *,
        row_book: RowBook | None = None,
        device_group_list: Sequence[DeviceGroup] | None = None,
    ) -> None:
        if mode not in ("CPU", "ZERO_COPY", "CUDA"):
            raise InvalidArgumentError(f"mode: expected 'CPU', 'ZERO_COPY' or 'CUDA', got {shown(mode)}")
        gpu = gpu_number(device, count=_C.cuda_device_count)
        self.topo = topo
        self.mode = mode
        self.device = gpu
        self.row_book = row_book
        self.device_group_list = usable_groups(device_group_list)
        self._check_groups()
        self._placing = threading.Lock()  # threads that sample first at once place the edges once
        self._native: _C.Csr | None = None
        self._native_weighted: _C.Csr | None = None
        self._on_gpus: dict[int, DeviceTopology] = {}
        self._received: Mapping[tuple[int, ...], Mapping[str, OnGpu]] = {}

    def _check_groups(self) -> None:
        if not self.device_group_list:
            return
        if self.mode != "CUDA" or self.device is None:
            raise InvalidArgumentError(
                "device_group_list: expected mode 'CUDA' and a device, which samples, "
                f"got mode {self.mode!r} and device {self.device}"
            )
        self._group_of(self.device)

    def _group_of(self, gpu: int) -> tuple[int, ...]:
        """The GPUs that hold the edges which one of them reads."""
        return group_of(gpu, gpus_by_group(self.device_group_list), _C.cuda_can_access_peer)

    @property
    def sampling_device(self) -> torch.device | None:
        """The GPU that samples from this graph; None where the CPU does."""
        if self.mode == "CPU" or self.device is None or self.row_book is not None:
            return None
        return named_gpu(self.device)

    def on_device(self) -> DeviceTopology:
        """The edges where the GPU reads them; they are copied when this is first asked for.

        Raises:
            InvalidArgumentError: the CPU samples from this graph.
        """
        device = self.sampling_device
        if device is None:
            raise InvalidArgumentError("device: expected a graph of mode 'CUDA' or 'ZERO_COPY' with a device")
        return self._read_by(self.device or 0, device)

    def _read_by(self, gpu: int, device: torch.device) -> DeviceTopology:
        with self._placing:
            if gpu not in self._on_gpus:
                placement: Placement = "CUDA" if self.mode == "CUDA" else "ZERO_COPY"
                group = self._group_of(gpu)
                self._on_gpus[gpu] = DeviceTopology(self.topo, placement, device, self._held_by(group), group)
            return self._on_gpus[gpu]

    def _held_by(self, group: tuple[int, ...]) -> dict[str, OnGpu]:
        """What the GPUs of a group hold already, for whichever of them, in this process or in another."""
        held = dict(self._received.get(group, {}))
        for topology in self._on_gpus.values():
            if topology.group == group:
                held |= topology.share()
        return held

    def sample_on(self, device: torch.device | str | int) -> None:
        """Has another GPU sample from now on; loaders that were made before stay on theirs. See ``Dataset.sample_on``.

        Raises:
            InvalidArgumentError: there is no such GPU, or it is of none of the groups.
        """
        gpu = usable_gpu(device)
        self._group_of(gpu)
        self.device = gpu

    def lazy_init(self) -> None:
        """Makes the native view, if it was not made yet."""
        if self._native is None:
            topo = self.topo
            self._native = _C.Csr(topo.indptr, topo.indices, topo.edge_ids, topo.num_cols, topo.edge_times)
            read_at_random(topo.indptr, topo.indices, topo.edge_ids, topo.edge_times)

    @property
    def graph_handler(self) -> _C.Csr:
        """The native graph that the core samples from, by methods that read no weights."""
        self.lazy_init()
        assert self._native is not None
        return self._native

    @property
    def weighted_handler(self) -> _C.Csr:
        """The native graph with its counted weights, which are made when this is first asked for.

        Raises:
            InvalidArgumentError: the graph has no edge weights.
        """
        if self._native_weighted is None:
            topo, weights = self.topo, self.topo.weight_sums
            if weights is None:
                raise InvalidArgumentError("with_weight, strategy: weights are to be read, but the graph has none")
            self._native_weighted = _C.Csr(
                topo.indptr,
                topo.indices,
                topo.edge_ids,
                topo.num_cols,
                topo.edge_times,
                topo.edge_weights,
                weights.sums,
                weights.positive_counts,
            )
            read_at_random(topo.indptr, topo.indices, topo.edge_ids, topo.edge_times, topo.edge_weights, weights.sums)
        return self._native_weighted

    def cover(self, num_rows: int = 0, num_cols: int = 0) -> None:
        """Adds rows without edges, and columns, up to these numbers of nodes; fewer change nothing.

        A partition's rows are those of its book, and stay.
        """
        topo = self.topo
        missing = max(num_rows - topo.row_count, 0) if self.row_book is None else 0
        if missing == 0 and num_cols <= topo.num_cols:
            topo.has_num_nodes = True
            return
        num_cols = max(num_cols, topo.num_cols)
        self.topo = Topology.from_arrays(
            torch.cat([topo.indptr, topo.indptr[-1:].expand(missing)]) if missing else topo.indptr,
            topo.indices,
            topo.edge_ids,
            layout=topo.layout,
            num_cols=num_cols,
            edge_weights=topo.edge_weights,
            edge_times=topo.edge_times,
            weight_sums=topo._weight_sums,
            folder=topo._folder,
        )
        self._native = self._native_weighted = None
        self._on_gpus, self._received = {}, {}

    def check_held_whole(self, name: str) -> None:
        """InvalidArgumentError, about ``name``, unless row *v* is that of node *v*, as it is where a graph is whole."""
        if self.row_book is not None:
            raise InvalidArgumentError(
                f"{name}: expected a data set that is held whole, with rows in the order of the ids, got a partition, "
                "whose rows are in the order of its book; the loaders of graphlearn_dist.distributed sample from it"
            )

    def cover_one_type(self) -> None:
        """Makes rows and columns the same nodes, unless the topology was given their numbers."""
        self.check_held_whole("graph")
        if not self.topo.has_num_nodes:
            count = max(self.row_count, self.col_count)
            self.cover(count, count)

    def export_topology(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(indptr, indices, edge ids)."""
        return self.topo.indptr, self.topo.indices, self.topo.edge_ids

    @property
    def num_row_nodes(self) -> int:
        """Nodes that may have a row, here or in another partition."""
        return self.row_count if self.row_book is None else self.row_book.num_ids

    def rows_of(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Rows of nodes (int ``[n]``), int64; None where a row is the id. ``UnknownIdError``: another partition's."""
        if self.row_book is None:
            return None
        rows: torch.Tensor = self.row_book.id2index[ids]
        return rows.to(torch.int64)

    def held(self, ids: torch.Tensor) -> torch.Tensor:
        """Whether the row of each node (int ``[n]``) is here, bool ``[n]``."""
        if self.row_book is None:
            return torch.ones(ids.numel(), dtype=torch.bool)
        return self.row_book[ids] == self.row_book.partition_idx

    def share_ipc(self) -> GraphHandle:
        """A handle with which another process of this host maps the same edges while this graph lives.

        In mode ``"CUDA"`` that goes for what lies in the memory of GPUs too, which is brought there now, to each group.
        """
        with shared_memory.moving:
            before, topology = self.topo.indptr, self.topo.to_handle()
            if self.mode == "ZERO_COPY" and self.topo.indptr is not before:
                self._on_gpus = {}  # they pinned memory that the edges have left
            on_gpu = self._share_by_group()
        return GraphHandle(topology, self.mode, self.device, self.row_book, self.device_group_list, on_gpu)

    def _share_by_group(self) -> dict[tuple[int, ...], dict[str, OnGpu]]:
        if self.mode != "CUDA" or self.device is None or self.sampling_device is None:
            return {}
        own, found = self._group_of(self.device), dict[tuple[int, ...], dict[str, OnGpu]]()
        for group in gpus_by_group(self.device_group_list) or [own]:
            reader = self.device if group == own else group[0]
            placed = self._read_by(reader, named_gpu(reader))
            placed.handler(weighted=self.topo.edge_weights is not None)
            found[group] = placed.share()
        return found

    @classmethod
    def from_ipc_handle(cls, ipc_handle: GraphHandle) -> Graph:
        """The graph that ``share_ipc`` described, over the same memory."""
        topology = Topology.from_handle(ipc_handle.topology)
        book, groups = ipc_handle.row_book, ipc_handle.device_group_list
        graph = cls(topology, ipc_handle.mode, ipc_handle.device, row_book=book, device_group_list=groups)
        graph._received = ipc_handle.on_gpu
        return graph

    def __getstate__(self) -> dict[str, Any]:
        made_here: dict[str, Any] = {
            "_native": None,
            "_native_weighted": None,
            "_on_gpus": {},
            "_received": {},
            "_placing": None,
        }
        return {**self.__dict__, **made_here}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._placing = threading.Lock()

    @property
    def row_count(self) -> int:
        return self.topo.row_count

    @property
    def col_count(self) -> int:
        return self.topo.num_cols

    @property
    def edge_count(self) -> int:
        return self.topo.edge_count


def rebuild_graph(ipc_handle: GraphHandle) -> Graph:
    """The graph that ``reduce_graph`` described."""
    return Graph.from_ipc_handle(ipc_handle)


def reduce_graph(graph: Graph) -> tuple[Any, ...]:
    """How a graph goes to another process through ``multiprocessing``: as a handle to the same memory, without a copy.

    The process that sent it must still live when it is received. ``pickle`` and ``copy`` take the edges themselves.
    """
    return rebuild_graph, (graph.share_ipc(),)


ForkingPickler.register(Graph, reduce_graph)

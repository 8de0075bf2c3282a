"""The names of ``graphlearn_torch.data.graph``."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal

import torch

from ... import _C
from ...data import graph, topology
from ...data.dataset import Dataset
from ...data.device.device_group import DeviceGroup
from ...utils.device import gpu_number

logger = logging.getLogger(__name__)


class Topology(topology.Topology):
    """Edges as CSR or CSC, see ``graphlearn_dist.data.Topology``; ids are int64, layouts are of either case."""

    def __init__(
        self,
        edge_index: Any,
        edge_ids: Any = None,
        edge_weights: Any = None,
        input_layout: str = "COO",
        layout: Literal["CSR", "CSC"] = "CSR",
        num_nodes: tuple[int, int] | None = None,
        *,
        edge_times: Any = None,
    ) -> None:
        super().__init__(
            edge_index,
            edge_ids,
            edge_weights,
            input_layout.upper(),
            "CSC" if layout.upper() == "CSC" else layout,
            num_nodes,
            edge_times=edge_times,
        )
        self._indices, self._edge_ids = self._indices.to(torch.int64), self._edge_ids.to(torch.int64)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)


class CSRTopo(Topology):
    """The name of ``Topology`` in earlier releases and in the documentation; ``layout`` is that of ``edge_index``."""

    def __init__(self, edge_index: Any, edge_ids: Any = None, layout: str = "COO") -> None:
        super().__init__(edge_index, edge_ids, None, layout)


class Graph(graph.Graph):
    """See ``graphlearn_dist.data.Graph``; modes are of either case, and in mode ``"CPU"`` no device is looked at.

    In the other modes a graph without a device takes the GPU of the first loader in this process that has one.
    """

    def __init__(
        self,
        topo: topology.Topology,
        mode: str = "ZERO_COPY",
        device: torch.device | str | int | None = None,
        *,
        row_book: Any = None,
        device_group_list: Sequence[DeviceGroup] | None = None,
    ) -> None:
        mode = mode.upper()
        gpu = None if mode == "CPU" else device
        super().__init__(topo, mode, gpu, row_book=row_book, device_group_list=device_group_list)


def take_gpu(dataset: Dataset, device: Any, *, may_take: bool = True) -> None:
    """Gives graphs that were made for a GPU, and without a device, that of a loader, as GraphLearn-for-PyTorch has them
    take the current one when they are first sampled. Where that is none, a warning says so of mode ``"CUDA"``, and of
    ``"ZERO_COPY"``, the mode of graphs whose program says nothing, where there is a GPU; once a process.

    Args:
        dataset: graphs and features.
        device: where the loader's batches go, or None.
        may_take: whether the loader samples in this process, from a graph that is held whole.

    Raises:
        InvalidArgumentError: there is no such device.
    """
    graphs = list(dataset.graphs().values())
    if not graphs or any(one.mode == "CPU" or one.device is not None for one in graphs):
        return
    gpu = gpu_number(device, must_be_there=False)
    if gpu is not None and may_take and _C.cuda_is_built() and gpu < _C.cuda_device_count():
        for one in graphs:
            one.sample_on(gpu)
    elif any(one.mode == "CUDA" for one in graphs):
        _tell_of_cpu(str(device))
    elif torch.cuda.device_count():  # which asks the driver's library, not CUDA: forks may come after it
        _tell_of_idle_gpu()


@functools.cache
def _tell_of_cpu(device: str) -> None:
    logger.warning(
        "graph_mode='CUDA': the CPU samples: the graph was given no device, and cannot take the loader's, %s; give "
        "init_graph(..., device=0) or the load of the data set the GPU that is to sample, in a build with CUDA",
        device,
    )


@functools.cache
def _tell_of_idle_gpu() -> None:
    logger.warning(
        "graph_mode='ZERO_COPY', which is the default: the CPU samples, though a GPU is there: the graph was given no "
        "device, and cannot take its loader's; init_graph(..., device=0), or the load of the data set with it, has the "
        "GPU sample, in a build with CUDA, and graph_mode='CPU' says that the CPU is to"
    )


def rebuild_graph(ipc_handle: Any) -> Graph:
    """The graph that ``reduce_graph`` described."""
    rebuilt = Graph.from_ipc_handle(ipc_handle)
    assert isinstance(rebuilt, Graph)
    return rebuilt


def reduce_graph(graph: Graph) -> tuple[Any, ...]:
    """How a graph goes to another process through ``multiprocessing``: as a handle to the same memory."""
    return rebuild_graph, (graph.share_ipc(),)


ForkingPickler.register(Graph, reduce_graph)

__all__ = [
    "CSRTopo",
    "Graph",
    "Topology",
    "rebuild_graph",
    "reduce_graph",
]

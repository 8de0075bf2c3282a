"""A topology in memory that a GPU samples from."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

import torch

from .. import _C
from ..utils.device import device_number

if TYPE_CHECKING:
    from .topology import Topology

Placement = Literal["CUDA", "ZERO_COPY"]


class DeviceTopology:
    """The arrays of a topology where kernels on one device can read them. Thread-safe.

    Args:
        topo: the edges, checked when they were made.
        placement: ``"CUDA"`` copies the arrays to the memory of the GPU; ``"ZERO_COPY"`` copies them to pinned host
            memory, which the GPU reads over its link.
        device: the GPU. On the CPU device the arrays stay where they are and the host runs the kernels' bodies.
    """

    def __init__(self, topo: Topology, placement: Placement, device: torch.device) -> None:
        self.device = device
        self.num_edges = topo.edge_count
        self.max_degree = int(topo.indptr.diff().max()) if topo.row_count else 0
        self._topo = topo
        self._placement = placement
        self._lock = threading.Lock()
        self._plain: _C.DeviceCsr | None = None
        self._weighted: _C.DeviceCsr | None = None
        self._indptr = self._place(topo.indptr)
        self._indices = self._place(topo.indices)
        self._edge_ids = self._place(topo.edge_ids)
        self._edge_times = None if topo.edge_times is None else self._place(topo.edge_times)

    def handler(self, *, weighted: bool) -> _C.DeviceCsr:
        """The native graph, with the sums of weights where they are asked for."""
        with self._lock:
            if not weighted:
                self._plain = self._plain or self._make(None, None)
                return self._plain
            if self._weighted is None:
                sums = self._topo.weight_sums
                assert sums is not None  # the draws of a loader were checked against the data set
                counts = None if sums.positive_counts is None else self._place(sums.positive_counts)
                self._weighted = self._make(self._place(sums.sums), counts)
            return self._weighted

    def _make(self, sums: torch.Tensor | None, counts: torch.Tensor | None) -> _C.DeviceCsr:
        return _C.DeviceCsr(
            self._indptr,
            self._indices,
            self._edge_ids,
            self._topo.num_cols,
            device_number(self.device),
            self._edge_times,
            sums,
            counts,
        )

    def _place(self, array: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cpu" or array.numel() == 0:
            return array
        return array.to(self.device) if self._placement == "CUDA" else array.pin_memory()

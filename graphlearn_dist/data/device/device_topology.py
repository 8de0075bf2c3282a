"""A topology in memory that a GPU samples from."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch

from ... import _C
from ...utils.device import device_number
from ..handles import GpuHandle
from .pinned_memory import PinnedTensor, pin
from .spread_tensor import SpreadHandle, SpreadTensor, spread
from .stream_uses import at_drop

if TYPE_CHECKING:
    from ..topology import Topology

Placement = Literal["CUDA", "ZERO_COPY"]
# What the memory of GPUs holds, for other processes.
OnGpu = GpuHandle | SpreadHandle


class DeviceTopology:
    """The arrays of a topology where kernels on one device can read them. Thread-safe.

    Args:
        topo: the edges, checked when they were made.
        placement: ``"CUDA"`` copies the arrays to the memory of the GPU; ``"ZERO_COPY"`` pins them in host memory,
            which the GPU reads over its link.
        device: the GPU. On the CPU device the arrays stay where they are and the host runs the kernels' bodies.
        received: by name, arrays that the memory of this GPU or of its group holds already.
        group: GPUs that hold an equal share of each array, where it is ``"CUDA"`` and they are several; ``device``
            reads them all, as memory of its own. Those of the CPU device are in as many pieces.

    Raises:
        InvalidArgumentError: the GPU cannot read the memory of another of its group.
    """

    def __init__(
        self,
        topo: Topology,
        placement: Placement,
        device: torch.device,
        received: Mapping[str, OnGpu] | None = None,
        group: Sequence[int] = (),
    ) -> None:
        self.device = device
        self.group = tuple(group)
        self.edge_count = topo.edge_count
        self.max_degree = topo.max_degree
        self._topo = topo
        self._placement = placement
        self._lock = threading.Lock()
        self._received = dict(received or {})
        self._placed: dict[str, PinnedTensor | SpreadTensor] = {}
        at_drop(self, self._placed.clear)  # whose end may wait for all of the GPU
        self._handles: dict[str, OnGpu] = {}  # own ones that were told: descriptors are open while the arrays are here
        self._handlers: dict[bool, _C.DeviceCsr] = {}

    def handler(self, *, weighted: bool) -> _C.DeviceCsr:
        """The native graph, with the sums of weights where they are asked for."""
        with self._lock:
            if weighted not in self._handlers:
                self._handlers[weighted] = self._make(weighted=weighted)
            return self._handlers[weighted]

    @property
    def memory(self) -> list[torch.Tensor]:
        """The arrays, where handlers that were made until now read them."""
        with self._lock:
            return [placed.tensor for placed in self._placed.values() if placed.tensor.numel()]

    @property
    def num_edge_ids(self) -> int:
        """Edge ids are below this."""
        return self._topo.num_edge_ids

    def share(self) -> dict[str, OnGpu]:
        """Handles of the arrays that have been brought to the memory of the GPU, or of its group, by name.

        They are the same each time: a process that is being spawned gets descriptors after all is pickled, when nobody
        else has the handles any more.
        """
        with self._lock:
            for name, placed in self._placed.items():
                if name not in self._received and name not in self._handles:
                    handle = _handle_of(placed)
                    if handle is not None:
                        self._handles[name] = handle
            return self._handles | self._received

    def _make(self, *, weighted: bool) -> _C.DeviceCsr:
        topo, sums = self._topo, self._topo.weight_sums if weighted else None
        assert sums is not None or not weighted  # the draws of a loader were checked against the data set
        return _C.DeviceCsr(
            self._place("indptr", topo.indptr),
            self._place("indices", topo.indices),
            self._place("edge_ids", topo.edge_ids),
            topo.num_cols,
            device_number(self.device),
            self._place("edge_times", topo.edge_times),
            self._place("edge_weights", topo.edge_weights if weighted else None),
            self._place("weight_sums", None if sums is None else sums.sums),
            self._place("positive_counts", None if sums is None else sums.positive_counts),
        )

    def _place(self, name: str, array: torch.Tensor | None) -> torch.Tensor | None:
        if array is None:
            return None
        if name not in self._placed:
            self._placed[name] = self._readable(name, array)
        return self._placed[name].tensor

    def _readable(self, name: str, array: torch.Tensor) -> PinnedTensor | SpreadTensor:
        if array.numel() == 0:
            return PinnedTensor(array)
        match self._received.get(name):
            case SpreadHandle() as pieces:
                return pieces.open(self.device)
            case GpuHandle() as whole:
                return PinnedTensor(whole.open())
        if len(self.group) > 1 and self._placement == "CUDA":
            return spread(array, self.group, self.device)
        if self.device.type == "cpu":
            return PinnedTensor(array)
        if self._placement == "CUDA":
            return PinnedTensor(array.to(self.device))
        return pin(array, device_number(self.device))


def _handle_of(placed: PinnedTensor | SpreadTensor) -> OnGpu | None:
    """For another process; None of what lies in host memory."""
    if isinstance(placed, SpreadTensor):
        return SpreadHandle.of(placed)
    return GpuHandle(placed.tensor) if placed.tensor.is_cuda else None

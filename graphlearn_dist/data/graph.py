"""Topology and Graph: the edges of one type, compressed by row in canonical order."""

from __future__ import annotations

from typing import Any, Literal

import torch

from .. import _C
from ..core import available_cores, thread_pool, to_tensor
from ..errors import InvalidArgumentError
from ..utils.tensor import convert_to_tensor
from . import shared_memory

Layout = Literal["CSR", "CSC"]


def _pair(edge_index: Any) -> tuple[torch.Tensor, torch.Tensor]:
    pair = convert_to_tensor(edge_index)
    if isinstance(pair, torch.Tensor) and pair.dim() == 2 and pair.size(0) == 2:
        return pair[0].contiguous(), pair[1].contiguous()
    if isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(part, torch.Tensor) for part in pair):
        return pair[0].contiguous(), pair[1].contiguous()
    shape = tuple(pair.shape) if isinstance(pair, torch.Tensor) else type(edge_index).__name__
    raise InvalidArgumentError(f"edge_index: expected a tensor of shape [2, E] or a pair of tensors, got {shape}")


def _expand(indptr: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr.diff())


def _extent(ids: torch.Tensor) -> int:
    return int(ids.max()) + 1 if ids.numel() else 0


class Topology:
    """The edges of one type as CSR (rows are sources) or CSC (rows are targets).

    Each row is sorted by (neighbor id, edge id), whatever the order of the input. Ids are stored as int32 where they
    fit.

    Args:
        edge_index: for COO int ``[2, E]`` (sources, targets); for CSR ``(indptr, targets)``; for CSC
            ``(sources, indptr)``.
        edge_ids: int ``[E]``, ids of the edges in the order of the input; their positions unless given.
        edge_weights: not supported yet; must be None.
        input_layout: ``"COO"``, ``"CSR"`` or ``"CSC"``.
        layout: the form to hold, ``"CSR"`` or ``"CSC"``.
        num_nodes: ``(number of sources, number of targets)``; the largest ids plus one unless given.

    Raises:
        InvalidArgumentError: wrong shapes, dtypes or layouts.
        UnknownIdError: an id is negative or not below ``num_nodes``.
    """

    def __init__(
        self,
        edge_index: Any,
        edge_ids: Any = None,
        edge_weights: Any = None,
        input_layout: str = "COO",
        layout: Layout = "CSR",
        num_nodes: tuple[int, int] | None = None,
    ) -> None:
        if edge_weights is not None:
            raise InvalidArgumentError("edge_weights: weighted graphs are not supported yet; expected None")
        if layout not in ("CSR", "CSC"):
            raise InvalidArgumentError(f"layout: expected 'CSR' or 'CSC', got {layout!r}")
        source, target = _to_coo(edge_index, input_layout)
        if num_nodes is None:
            num_nodes = (_extent(source), _extent(target))
        row, col = (source, target) if layout == "CSR" else (target, source)
        num_rows, num_cols = num_nodes if layout == "CSR" else (num_nodes[1], num_nodes[0])
        ids = convert_to_tensor(edge_ids)
        pool = thread_pool(available_cores())
        arrays = _C.build_csr(row, col, None if ids is None else ids.contiguous(), num_rows, num_cols, pool)
        indptr, indices, sorted_ids = map(to_tensor, arrays)
        self._set(layout, indptr, indices, sorted_ids, num_cols)

    @classmethod
    def from_arrays(
        cls, indptr: torch.Tensor, indices: torch.Tensor, edge_ids: torch.Tensor, *, layout: Layout, num_cols: int
    ) -> Topology:
        """Wraps arrays that are in canonical order already, such as those of a partition directory. No copy."""
        topology = cls.__new__(cls)
        topology._set(layout, indptr, indices, edge_ids, num_cols)
        return topology

    def _set(
        self, layout: Layout, indptr: torch.Tensor, indices: torch.Tensor, edge_ids: torch.Tensor, num_cols: int
    ) -> None:
        self.layout: Layout = layout
        self.num_cols = num_cols
        self._indptr, self._indices, self._edge_ids = indptr, indices, edge_ids

    @property
    def indptr(self) -> torch.Tensor:
        """int64 ``[row_count + 1]``."""
        return self._indptr

    @property
    def indices(self) -> torch.Tensor:
        """int32 or int64 ``[edge_count]``: the other endpoint of each edge."""
        return self._indices

    @property
    def edge_ids(self) -> torch.Tensor:
        """int32 or int64 ``[edge_count]``."""
        return self._edge_ids

    @property
    def edge_weights(self) -> torch.Tensor | None:
        """None: weights are not supported yet."""
        return None

    @property
    def degrees(self) -> torch.Tensor:
        """int64 ``[row_count]``."""
        return self._indptr.diff()

    @property
    def row_count(self) -> int:
        return self._indptr.numel() - 1

    @property
    def edge_count(self) -> int:
        return self._indices.numel()

    def to_coo(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """(sources, targets, edge ids, weights), int64 ``[edge_count]`` each."""
        row, col = _expand(self._indptr), self._indices.to(torch.int64)
        source, target = (row, col) if self.layout == "CSR" else (col, row)
        return source, target, self._edge_ids.to(torch.int64), None

    def to_csr(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """(indptr, targets, edge ids, weights) by source."""
        return self._as_layout("CSR")

    def to_csc(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """(sources, indptr, edge ids, weights) by target."""
        indptr, indices, edge_ids, weights = self._as_layout("CSC")
        return indices, indptr, edge_ids, weights

    def _as_layout(self, layout: Layout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        topology = self
        if layout != self.layout:
            source, target, edge_ids, _ = self.to_coo()
            counts = (self.row_count, self.num_cols) if self.layout == "CSR" else (self.num_cols, self.row_count)
            topology = Topology((source, target), edge_ids, layout=layout, num_nodes=counts)
        return topology._indptr, topology._indices.to(torch.int64), topology._edge_ids.to(torch.int64), None

    def share_memory_(self) -> Topology:
        """Moves the arrays to memory that other processes can map; arrays mapped from files stay where they are."""
        self._indptr = shared_memory.share(self._indptr)
        self._indices = shared_memory.share(self._indices)
        self._edge_ids = shared_memory.share(self._edge_ids)
        return self

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)


def _to_coo(edge_index: Any, input_layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = _pair(edge_index)
    if input_layout == "COO":
        return first, second
    if input_layout == "CSR":
        return _expand(first), second
    if input_layout == "CSC":
        return first, _expand(second)
    raise InvalidArgumentError(f"input_layout: expected 'COO', 'CSR' or 'CSC', got {input_layout!r}")


class Graph:
    """A topology ready to be sampled.

    Args:
        topo: the edges.
        mode: ``"CPU"``, ``"ZERO_COPY"`` or ``"CUDA"``; without a GPU all of them live in host memory.
        device: the GPU, where there is one.
    """

    def __init__(self, topo: Topology, mode: str = "ZERO_COPY", device: int | None = None) -> None:
        if mode not in ("CPU", "ZERO_COPY", "CUDA"):
            raise InvalidArgumentError(f"mode: expected 'CPU', 'ZERO_COPY' or 'CUDA', got {mode!r}")
        if device is not None and device >= _C.cuda_device_count():
            raise InvalidArgumentError(f"device: GPU {device} was asked for, {_C.cuda_device_count()} are usable")
        self.topo = topo
        self.mode = mode
        self.device = device
        self._native: _C.Csr | None = None

    def lazy_init(self) -> None:
        """Makes the native view, if it was not made yet."""
        if self._native is None:
            self._native = _C.Csr(self.topo.indptr, self.topo.indices, self.topo.edge_ids, self.topo.num_cols)

    @property
    def graph_handler(self) -> _C.Csr:
        """The native graph that the core samples from."""
        self.lazy_init()
        assert self._native is not None
        return self._native

    def grow(self, num_rows: int, num_cols: int) -> None:
        """Adds rows without edges, and columns, up to these numbers; fewer change nothing."""
        topo = self.topo
        missing = max(num_rows - topo.row_count, 0)
        indptr = torch.cat([topo.indptr, topo.indptr[-1:].expand(missing)])
        num_cols = max(num_cols, topo.num_cols)
        self.topo = Topology.from_arrays(indptr, topo.indices, topo.edge_ids, layout=topo.layout, num_cols=num_cols)
        self._native = None

    def export_topology(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(indptr, indices, edge ids)."""
        return self.topo.indptr, self.topo.indices, self.topo.edge_ids

    @property
    def row_count(self) -> int:
        return self.topo.row_count

    @property
    def col_count(self) -> int:
        return self.topo.num_cols

    @property
    def edge_count(self) -> int:
        return self.topo.edge_count

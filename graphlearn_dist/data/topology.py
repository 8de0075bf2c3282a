"""Topology: the edges of one type, compressed by row in canonical order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from .. import _C
from ..core import available_cores, check_index_vector, thread_pool, to_optional_tensor, to_tensor
from ..errors import InvalidArgumentError, PartitionFormatError
from ..utils.shown import shown
from ..utils.tensor import convert_to_tensor
from . import shared_memory
from .handles import TopologyHandle

Layout = Literal["CSR", "CSC"]


def _pair(edge_index: Any) -> tuple[torch.Tensor, torch.Tensor]:
    pair = convert_to_tensor(edge_index, name="edge_index")
    is_pair = isinstance(pair, (tuple, list)) and all(isinstance(part, torch.Tensor) for part in pair)
    if (is_pair or (isinstance(pair, torch.Tensor) and pair.dim() == 2)) and len(pair) == 2:
        return check_index_vector(pair[0], "edge_index"), check_index_vector(pair[1], "edge_index")
    shape = tuple(pair.shape) if isinstance(pair, torch.Tensor) else type(edge_index).__name__
    raise InvalidArgumentError(f"edge_index: expected a tensor of shape [2, E] or a pair of tensors, got {shape}")


def _expand(sizes: torch.Tensor) -> torch.Tensor:
    """The row of each edge, from the number of edges of each row."""
    return torch.repeat_interleave(torch.arange(sizes.numel()), sizes)


def row_sizes(indptr: torch.Tensor, num_edges: int, folder: Path | None = None) -> torch.Tensor:
    """The number of edges of each row, int64 ``[num_rows]``.

    Raises:
        PartitionFormatError: offsets do not ascend from 0 to ``num_edges``: the files in ``folder`` are damaged.
    """
    descends = indptr[1:] < indptr[:-1]
    where = "indptr" if folder is None else str(folder / "indptr.npy")
    if bool(descends.any()):
        row = int(descends.nonzero()[0, 0])
        found = f"{int(indptr[row])} before {int(indptr[row + 1])} at row {row}"
        raise PartitionFormatError(f"{where}: expected ascending offsets, found {found}")
    if int(indptr[0]) != 0 or int(indptr[-1]) != num_edges:
        raise PartitionFormatError(f"{where}: expected 0 to {num_edges}, found {int(indptr[0])} to {int(indptr[-1])}")
    return indptr.diff()


def _check_offsets(indptr: torch.Tensor, num_edges: int) -> None:
    """InvalidArgumentError unless these are bounds of rows that hold ``num_edges`` edges."""
    if not indptr.numel() or int(indptr[0]) != 0 or int(indptr[-1]) != num_edges or bool((indptr.diff() < 0).any()):
        found = f"{indptr.numel()} from {indptr[:1].tolist()} to {indptr[-1:].tolist()}"
        raise InvalidArgumentError(
            f"edge_index: expected offsets of rows that ascend from 0 to the number of edges, {num_edges}, got {found}"
        )


def extent(ids: torch.Tensor) -> int:
    """One more than the largest id; 0 without ids."""
    return int(ids.max()) + 1 if ids.numel() else 0


def _per_edge(values: Any, name: str) -> torch.Tensor | None:
    tensor = convert_to_tensor(values, name=name)
    if tensor is None:
        return None
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgumentError(f"{name}: expected a tensor with one entry per edge, got {type(values).__name__}")
    return tensor.contiguous()


def _as_weights(values: Any) -> torch.Tensor | None:
    weights = _per_edge(values, "edge_weights")
    if weights is None or weights.is_floating_point():
        return weights
    if weights.dtype == torch.bool or weights.is_complex():
        raise InvalidArgumentError(f"edge_weights: expected floating-point or integer numbers, got {weights.dtype}")
    return weights.to(torch.float32)


@dataclass(frozen=True)
class WeightSums:
    """Cumulative weights (see ``csrc/graph/weights.h``).

    Attributes:
        sums: float64 ``[edge_count]``: within each row, the sum of the weights up to and with each edge.
        positive_counts: int32 ``[edge_count]``: the number of edges of positive weight, likewise; None where all are.
    """

    sums: torch.Tensor
    positive_counts: torch.Tensor | None

    def share(self) -> WeightSums:
        """The same in memory that other processes can map."""
        return WeightSums(shared_memory.share(self.sums), shared_memory.share_all(self.positive_counts))


class Topology:
    """The edges of one type as CSR (rows are sources) or CSC (rows are targets).

    Each row is sorted by (neighbor id, edge id), and with times by (time, neighbor id, edge id), whatever the order of
    the input. Ids are stored as int32 where they fit.

    Args:
        edge_index: for COO int ``[2, E]`` (sources, targets); for CSR ``(indptr, targets)``; for CSC
            ``(sources, indptr)``.
        edge_ids: int ``[E]``, ids of the edges in the order of the input; their positions unless given.
        edge_weights: float ``[E]`` in the order of the input, finite and at least 0; integers are made float32.
        input_layout: ``"COO"``, ``"CSR"`` or ``"CSC"``.
        layout: the form to hold, ``"CSR"`` or ``"CSC"``.
        num_nodes: ``(number of sources, number of targets)``; the largest ids plus one unless given, and of what is
            given by row at least its rows. A homogeneous graph counts both alike, wherever it is used as one (see
            ``Graph.cover``).
        edge_times: int64 or int32 ``[E]`` in the order of the input, in any unit.

    Raises:
        InvalidArgumentError: wrong shapes, dtypes or layouts, or a weight that is negative, infinite or not a number.
        UnknownIdError: an id is negative or not below ``num_nodes``.

    Attributes:
        has_num_nodes: whether the numbers of nodes were given; else there may be more than the edges show.
    """

    def __init__(
        self,
        edge_index: Any,
        edge_ids: Any = None,
        edge_weights: Any = None,
        input_layout: str = "COO",
        layout: Layout = "CSR",
        num_nodes: tuple[int, int] | None = None,
        *,
        edge_times: Any = None,
    ) -> None:
        if layout not in ("CSR", "CSC"):
            raise InvalidArgumentError(f"layout: expected 'CSR' or 'CSC', got {shown(layout)}")
        edge_index = convert_to_tensor(edge_index, name="edge_index")
        source, target = to_coo(edge_index, input_layout)
        least = count_ends(edge_index, input_layout)
        has_num_nodes = num_nodes is not None
        num_nodes = least if num_nodes is None else num_nodes
        given_rows = {"CSR": 0, "CSC": 1}.get(input_layout)
        if given_rows is not None and num_nodes[given_rows] < least[given_rows]:
            raise InvalidArgumentError(
                f"num_nodes: expected at least the {least[given_rows]} rows of edge_index, got {num_nodes[given_rows]}"
            )
        row, col = (source, target) if layout == "CSR" else (target, source)
        num_rows, num_cols = num_nodes if layout == "CSR" else (num_nodes[1], num_nodes[0])
        ids, times = _per_edge(edge_ids, "edge_ids"), _per_edge(edge_times, "edge_times")
        weights = _as_weights(edge_weights)
        pool = thread_pool(available_cores())
        arrays = _C.build_csr(row, col, ids, num_rows, num_cols, pool, times, weights)
        indptr, indices, sorted_ids, *rest = map(to_tensor, arrays)
        sorted_times = None if times is None else rest.pop(0)
        self._set(layout, indptr, indices, sorted_ids, num_cols, rest.pop() if rest else None, sorted_times)
        self.has_num_nodes = has_num_nodes

    @classmethod
    def from_arrays(
        cls,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        edge_ids: torch.Tensor,
        *,
        layout: Layout,
        num_cols: int,
        edge_weights: torch.Tensor | None = None,
        edge_times: torch.Tensor | None = None,
        weight_sums: WeightSums | None = None,
        has_num_nodes: bool = True,
        folder: Path | None = None,
    ) -> Topology:
        """Wraps arrays that are in canonical order already, such as those of a partition directory. No copy.

        ``weight_sums`` are those of ``edge_weights``, where somebody has made them already. ``folder`` is where the
        files lie that the arrays are mapped from. Nothing is read: what is wrong in them is found where it is used.
        """
        topology = cls.__new__(cls)
        topology._set(layout, indptr, indices, edge_ids, num_cols, edge_weights, edge_times)
        topology._weight_sums, topology._folder = weight_sums, folder
        topology.has_num_nodes = has_num_nodes
        return topology

    def _set(
        self,
        layout: Layout,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        edge_ids: torch.Tensor,
        num_cols: int,
        edge_weights: torch.Tensor | None,
        edge_times: torch.Tensor | None,
    ) -> None:
        self.layout: Layout = layout
        self.num_cols = num_cols
        self._indptr, self._indices, self._edge_ids = indptr, indices, edge_ids
        self._edge_weights, self._edge_times = edge_weights, edge_times
        self._weight_sums: WeightSums | None = None
        self._num_edge_ids: int | None = None
        self.has_num_nodes = True
        self._folder: Path | None = None

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
    def num_edge_ids(self) -> int:
        """Edge ids are below this; they are looked through when it is first asked for."""
        if self._num_edge_ids is None:
            self._num_edge_ids = extent(self._edge_ids)
        return self._num_edge_ids

    @property
    def edge_weights(self) -> torch.Tensor | None:
        """float ``[edge_count]``, or None."""
        return self._edge_weights

    @property
    def edge_times(self) -> torch.Tensor | None:
        """int64 ``[edge_count]``, ascending within each row, or None."""
        return self._edge_times

    @property
    def weight_sums(self) -> WeightSums | None:
        """The counted weights that weighted sampling reads, made when first asked for; None without weights.

        Raises:
            InvalidArgumentError: a weight is negative, infinite or not a number.
            PartitionFormatError: the same, in the files of a partition; or their offsets do not ascend.
        """
        if self._weight_sums is None and self._edge_weights is not None:
            try:
                sums, counts = _C.sum_weights(self._indptr, self._edge_weights, thread_pool(available_cores()))
            except InvalidArgumentError as error:
                if self._folder is None:
                    raise
                raise PartitionFormatError(f"{self._folder / 'weights.npy'}: {error}") from error
            self._weight_sums = WeightSums(to_tensor(sums), to_optional_tensor(counts))
        return self._weight_sums

    @property
    def degrees(self) -> torch.Tensor:
        """int64 ``[row_count]``.

        Raises:
            PartitionFormatError: offsets do not ascend; they were read from files that are damaged.
        """
        return row_sizes(self._indptr, self.edge_count, self._folder)

    @property
    def max_degree(self) -> int:
        """The largest of ``degrees``; 0 where there are no rows."""
        return int(self.degrees.max()) if self.row_count else 0

    @property
    def row_count(self) -> int:
        return self._indptr.numel() - 1

    @property
    def edge_count(self) -> int:
        return self._indices.numel()

    def to_coo(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """(sources, targets, edge ids, weights): int64 ``[edge_count]`` each, weights float or None."""
        row, col = _expand(self.degrees), self._indices.to(torch.int64)
        source, target = (row, col) if self.layout == "CSR" else (col, row)
        return source, target, self._edge_ids.to(torch.int64), self._edge_weights

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
            source, target, edge_ids, weights = self.to_coo()
            counts = (self.row_count, self.num_cols) if self.layout == "CSR" else (self.num_cols, self.row_count)
            topology = Topology(
                (source, target), edge_ids, weights, layout=layout, num_nodes=counts, edge_times=self._edge_times
            )
        indices, edge_ids = topology._indices.to(torch.int64), topology._edge_ids.to(torch.int64)
        return topology._indptr, indices, edge_ids, topology._edge_weights

    def share_memory_(self) -> Topology:
        """Moves the arrays to memory that other processes can map; arrays mapped from files stay where they are.

        Weights are summed first, so that the processes share one copy of the sums.
        """
        self._indptr = shared_memory.share(self._indptr)
        self._indices = shared_memory.share(self._indices)
        self._edge_ids = shared_memory.share(self._edge_ids)
        if self._edge_times is not None:
            self._edge_times = shared_memory.share(self._edge_times)
        if self.weight_sums is not None and self._edge_weights is not None:
            self._edge_weights = shared_memory.share(self._edge_weights)
            self._weight_sums = self.weight_sums.share()
        return self

    def to_handle(self) -> TopologyHandle:
        """With which another process of this host maps the same arrays; those in private memory are moved first."""
        with shared_memory.moving:
            self.share_memory_()
            sums = self.weight_sums
            return TopologyHandle(
                layout=self.layout,
                num_cols=self.num_cols,
                indptr=shared_memory.to_handle(self._indptr),
                indices=shared_memory.to_handle(self._indices),
                edge_ids=shared_memory.to_handle(self._edge_ids),
                weights=shared_memory.to_optional_handle(self._edge_weights),
                times=shared_memory.to_optional_handle(self._edge_times),
                weight_sums=None if sums is None else shared_memory.to_handle(sums.sums),
                positive_counts=None if sums is None else shared_memory.to_optional_handle(sums.positive_counts),
                has_num_nodes=self.has_num_nodes,
            )

    @classmethod
    def from_handle(cls, handle: TopologyHandle) -> Topology:
        """Maps what ``to_handle`` described."""
        sums = shared_memory.from_optional_handle(handle.weight_sums)
        positive_counts = shared_memory.from_optional_handle(handle.positive_counts)
        return cls.from_arrays(
            shared_memory.from_handle(handle.indptr),
            shared_memory.from_handle(handle.indices),
            shared_memory.from_handle(handle.edge_ids),
            layout=handle.layout,
            num_cols=handle.num_cols,
            edge_weights=shared_memory.from_optional_handle(handle.weights),
            edge_times=shared_memory.from_optional_handle(handle.times),
            weight_sums=None if sums is None else WeightSums(sums, positive_counts),
            has_num_nodes=handle.has_num_nodes,
        )

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)


def _checked_pair(edge_index: Any, input_layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    if input_layout not in ("COO", "CSR", "CSC"):
        raise InvalidArgumentError(f"input_layout: expected 'COO', 'CSR' or 'CSC', got {shown(input_layout)}")
    first, second = _pair(edge_index)
    if input_layout != "COO":
        indptr, ids = (first, second) if input_layout == "CSR" else (second, first)
        _check_offsets(indptr, ids.numel())
    return first, second


def to_coo(edge_index: Any, input_layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(sources, targets) of edges given in one of the layouts of ``Topology``, in the order of the input."""
    first, second = _checked_pair(edge_index, input_layout)
    return (
        _expand(first.diff()) if input_layout == "CSR" else first,
        _expand(second.diff()) if input_layout == "CSC" else second,
    )


def count_ends(edge_index: Any, input_layout: str) -> tuple[int, int]:
    """How many sources and targets edges show: all rows where they are given by row, else the largest id plus one."""
    first, second = _checked_pair(edge_index, input_layout)
    num_sources = first.numel() - 1 if input_layout == "CSR" else extent(first)
    return num_sources, second.numel() - 1 if input_layout == "CSC" else extent(second)

"""How graphs, features and data sets are described to another process of the host, which maps the same memory.

A handle is good while the objects that it describes live in their process. It names memory and files and holds no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.multiprocessing.reductions import reduce_tensor

from ..messages import TensorHandle
from ..utils.message_types import register_message
from . import shared_memory
from .device.device_group import DeviceGroup
from .device.spread_tensor import SpreadHandle
from .device.stream_uses import note_received
from .schema import EdgeDirection, by_type
from .zone_order import ZoneOrder


class GpuHandle:
    """A tensor in the memory of a GPU. Sent to another process it is CUDA's handle of the same memory.

    Nothing is opened before ``open``: that of a GPU which a process does not use would cost it memory there.

    Args:
        tensor: the tensor, in the process that made it.
        described: elsewhere, what ``torch.multiprocessing`` rebuilds it from: a function, and its arguments.
    """

    def __init__(
        self,
        tensor: torch.Tensor | None = None,
        described: tuple[Callable[..., torch.Tensor], tuple[Any, ...]] | None = None,
    ) -> None:
        self._tensor = tensor
        self._described = described

    def open(self) -> torch.Tensor:
        """The tensor, over the same memory; good while that lives in the process that made it."""
        if self._tensor is None:
            assert self._described is not None
            rebuild, arguments = self._described
            self._tensor = rebuild(*arguments)
            note_received(self._tensor)
        return self._tensor

    def __reduce__(self) -> tuple[Any, ...]:
        # What was received is passed on as it came: CUDA's memory is described by its maker alone.
        return GpuHandle, (None, self._described or reduce_tensor(self._tensor))  # type: ignore[no-untyped-call]


@register_message
@dataclass(frozen=True)
class OrderHandle:
    """Where a ``ZoneOrder`` lies."""

    place: TensorHandle
    bounds: TensorHandle
    num_groups: int


def order_handles(orders: Mapping[Any, ZoneOrder]) -> dict[Any, OrderHandle]:
    """By node type, where orders lie that are shared already."""
    to_handle = shared_memory.to_handle
    return {key: OrderHandle(to_handle(o.place), to_handle(o.bounds), o.num_groups) for key, o in orders.items()}


def open_orders(handles: Mapping[Any, OrderHandle]) -> dict[Any, ZoneOrder]:
    """Maps orders, by node type."""
    opened = shared_memory.from_handle
    return {key: ZoneOrder(opened(h.place), opened(h.bounds), h.num_groups) for key, h in handles.items()}


@register_message
@dataclass(frozen=True)
class TopologyHandle:
    """Where the arrays of a ``Topology`` lie; ``weight_sums`` and ``positive_counts`` are those of its weights."""

    layout: Literal["CSR", "CSC"]
    num_cols: int
    indptr: TensorHandle
    indices: TensorHandle
    edge_ids: TensorHandle
    weights: TensorHandle | None = None
    times: TensorHandle | None = None
    weight_sums: TensorHandle | None = None
    positive_counts: TensorHandle | None = None
    has_num_nodes: bool = True


@dataclass(frozen=True)
class GraphHandle:
    """A ``Graph``.

    Attributes:
        topology: its edges.
        on_gpu: by group of GPUs, and by name, those arrays that they hold.
    """

    topology: TopologyHandle
    mode: str
    device: int | None
    row_book: Any | None
    device_group_list: Sequence[DeviceGroup] = ()
    on_gpu: Mapping[tuple[int, ...], Mapping[str, GpuHandle | SpreadHandle]] = field(default_factory=dict)


@dataclass(frozen=True)
class FeatureHandle:
    """A ``Feature``.

    Attributes:
        rows: all of its rows.
        id2index: the rows of ids: a tensor's place, or an object as it is.
        settings: its other arguments, by name.
        hot: the rows that GPUs hold, hottest first; None where they are the first ones.
        on_gpu: by group of GPUs, the hot rows that each of them holds.
    """

    rows: TensorHandle
    id2index: TensorHandle | Any | None
    settings: Mapping[str, Any]
    hot: TensorHandle | None = None
    on_gpu: Mapping[tuple[int, ...], tuple[GpuHandle, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class WholeDatasetHandle:
    """A ``Dataset``, everything by type; ``splits`` are the ids of (train, valid, test)."""

    edge_dir: EdgeDirection
    num_nodes: Mapping[Any, int]
    graphs: Mapping[Any, GraphHandle]
    node_features: Mapping[Any, FeatureHandle]
    edge_features: Mapping[Any, FeatureHandle]
    node_labels: Mapping[Any, TensorHandle]
    label_rows: Mapping[Any, TensorHandle | Any]
    node_times: Mapping[Any, TensorHandle]
    splits: tuple[Mapping[Any, TensorHandle], ...]
    columns: tuple[Mapping[Any, Mapping[str, TensorHandle]], ...] = ({}, {})
    constants: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    node_orders: Mapping[Any, OrderHandle] = field(default_factory=dict)


def share_tables(rows: Mapping[Any, Any]) -> dict[Any, Any]:
    """By type, rows of ids: a tensor in shared memory, an object that computes them as it is."""
    return {key: shared_memory.share(one) if isinstance(one, torch.Tensor) else one for key, one in rows.items()}


def handles_of(values: Any) -> dict[Any, Any]:
    """By type, where tensors lie that are shared already; other objects as they are."""
    tensors = by_type(values).items()
    return {key: shared_memory.to_handle(one) if isinstance(one, torch.Tensor) else one for key, one in tensors}


def tensors_of(handles: Mapping[Any, Any]) -> dict[Any, Any]:
    """The inverse of ``handles_of``."""
    found = handles.items()
    return {key: shared_memory.from_handle(one) if isinstance(one, TensorHandle) else one for key, one in found}

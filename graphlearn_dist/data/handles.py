"""How graphs, features and data sets are described to another process of the host, which maps the same memory.

A handle is good while the objects that it describes live in their process. It names memory and files and holds no rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..messages import TensorHandle
from . import shared_memory
from .schema import EdgeDirection, by_type


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


@dataclass(frozen=True)
class GraphHandle:
    """A ``Graph``: its edges, and the arguments it was made with."""

    topology: TopologyHandle
    mode: str
    device: int | None
    row_book: Any | None


@dataclass(frozen=True)
class FeatureHandle:
    """A ``Feature``: its rows, the rows of ids (a tensor's place, or an object as it is), and its settings by name."""

    rows: TensorHandle
    id2index: TensorHandle | Any | None
    settings: Mapping[str, Any]


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

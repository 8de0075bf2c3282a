"""How a partition is described to another process of the host, which then maps the same memory and files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..data import shared_memory
from ..data.feature import Feature
from ..data.graph import Layout, Topology, WeightSums
from ..messages import TensorHandle
from ..partition import PartitionBook
from ..partition.partition_book import TablePartitionBook, from_dict
from ..typing import EdgeType, NodeType


@dataclass(frozen=True)
class BookHandle:
    """A partition book for another process: its description, and where its tables lie, if it has any."""

    description: dict[str, Any]
    tables: tuple[TensorHandle, ...]


@dataclass(frozen=True)
class NodeHandle:
    """What one partition holds of one node type; ``labels`` by the rows of ``book``, ``features`` of ``feature_book``.

    ``feature_book`` is None where features lie with their nodes.
    """

    node_type: NodeType | None
    count: int
    book: BookHandle
    feature_book: BookHandle | None
    features: TensorHandle | None
    labels: TensorHandle | None
    times: TensorHandle | None = None
    earliest: int | None = None


@dataclass(frozen=True)
class EdgeHandle:
    """What one partition holds of one edge type; ``features`` by the rows of ``feature_book``."""

    edge_type: EdgeType | None
    num_cols: int
    indptr: TensorHandle
    indices: TensorHandle
    edge_ids: TensorHandle
    feature_book: BookHandle
    features: TensorHandle | None
    weights: TensorHandle | None = None
    times: TensorHandle | None = None
    weight_sums: TensorHandle | None = None
    positive_counts: TensorHandle | None = None


@dataclass(frozen=True)
class CacheHandle:
    """Copies of other partitions' rows in one store."""

    store: str
    ids: TensorHandle
    rows: TensorHandle


@dataclass(frozen=True)
class DatasetHandle:
    """A ``DistDataset`` for another process of the same host: nothing is copied, only mapped.

    ``cached_graphs`` are the graphs of other partitions that it keeps at hand.
    """

    partition_idx: int
    edge_dir: str
    nodes: tuple[NodeHandle, ...]
    edges: tuple[EdgeHandle, ...]
    caches: tuple[CacheHandle, ...] = ()
    cached_graphs: tuple[DatasetHandle, ...] = ()


def rows_handle(feature: Feature | None) -> TensorHandle | None:
    """Where the rows of a store lie, moved to shared memory if they are not; None stays None."""
    return None if feature is None else shared_memory.to_handle(feature.share_memory_().feature_tensor)


def optional_handle(tensor: torch.Tensor | None) -> TensorHandle | None:
    """Where a tensor lies that is shared already; None stays None."""
    return None if tensor is None else shared_memory.to_handle(tensor)


def edge_handle(
    edge_type: EdgeType | None, topology: Topology, feature_book: PartitionBook, features: Feature | None
) -> EdgeHandle:
    """Where everything of an edge type lies; what is in private memory moves to shared memory."""
    topology, book, features_at = topology.share_memory_(), book_handle(feature_book), rows_handle(features)
    sums = topology.weight_sums
    return EdgeHandle(
        edge_type=edge_type,
        num_cols=topology.num_cols,
        indptr=shared_memory.to_handle(topology.indptr),
        indices=shared_memory.to_handle(topology.indices),
        edge_ids=shared_memory.to_handle(topology.edge_ids),
        feature_book=book,
        features=features_at,
        weights=optional_handle(topology.edge_weights),
        times=optional_handle(topology.edge_times),
        weight_sums=None if sums is None else shared_memory.to_handle(sums.sums),
        positive_counts=None if sums is None else optional_handle(sums.positive_counts),
    )


def open_topology(edge: EdgeHandle, layout: Layout) -> Topology:
    """Maps the rows of an edge type."""

    def optional(handle: TensorHandle | None) -> torch.Tensor | None:
        return None if handle is None else shared_memory.from_handle(handle)

    sums = optional(edge.weight_sums)
    return Topology.from_arrays(
        shared_memory.from_handle(edge.indptr),
        shared_memory.from_handle(edge.indices),
        shared_memory.from_handle(edge.edge_ids),
        layout=layout,
        num_cols=edge.num_cols,
        edge_weights=optional(edge.weights),
        edge_times=optional(edge.times),
        weight_sums=None if sums is None else WeightSums(sums, optional(edge.positive_counts)),
    )


def book_handle(book: PartitionBook) -> BookHandle:
    """Describes a book; its tables move to shared memory."""
    if not isinstance(book, TablePartitionBook):
        return BookHandle(book.to_dict(), ())
    # The book keeps the shared tables: their handles are good while they live.
    book.owners, book.rows = shared_memory.share(book.owners), shared_memory.share(book.rows)
    return BookHandle(book.to_dict(), (shared_memory.to_handle(book.owners), shared_memory.to_handle(book.rows)))


def open_book(handle: BookHandle, partition_idx: int) -> PartitionBook:
    """The book that ``book_handle`` described, seen from a partition."""
    owners_and_rows = tuple(map(shared_memory.from_handle, handle.tables))
    tables = (owners_and_rows[0], owners_and_rows[1]) if owners_and_rows else None
    return from_dict(handle.description, partition_idx, tables)

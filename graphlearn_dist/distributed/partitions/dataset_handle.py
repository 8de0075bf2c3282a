"""How a partition is described to another process of the host, which then maps the same memory and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...data import shared_memory
from ...data.feature import Feature
from ...data.handles import OrderHandle, TopologyHandle, open_orders, tensors_of
from ...data.schema import EdgeDirection, by_type
from ...data.topology import Topology
from ...messages import TensorHandle
from ...partition import CachedRows, OwnedEdgesBook, PartitionBook
from ...partition.edge_book import edge_book_from_dict
from ...partition.partition_book import from_dict
from ...typing import EdgeType, NodeType
from ...utils.message_types import register_message
from .partition_parts import PartitionParts


@register_message
@dataclass(frozen=True)
class BookHandle:
    """A partition book for another process: its description, and where its tables lie, if it has any."""

    description: dict[str, Any]
    tables: tuple[TensorHandle, ...]


@register_message
@dataclass(frozen=True)
class NodeHandle:
    """What one partition holds of one node type; ``labels`` by the rows of ``book``, ``features`` of ``feature_book``.

    Lookups give features in ``out_dtype``; None: as they are stored.
    ``feature_book`` is None where features lie with their nodes. With ``has_all_labels``, the labels are those of all
    nodes, by id.
    """

    node_type: NodeType | None
    count: int
    book: BookHandle
    feature_book: BookHandle | None
    features: TensorHandle | None
    labels: TensorHandle | None
    times: TensorHandle | None = None
    earliest: int | None = None
    attrs: dict[str, TensorHandle] = field(default_factory=dict)
    has_all_labels: bool = False
    out_dtype: str | None = None


@register_message
@dataclass(frozen=True)
class EdgeHandle:
    """What one partition holds of one edge type; ``features`` by the rows of ``feature_book``, ``out_dtype`` as above.

    Where that says that features lie with their edges, its one table are the ids of those, ascending.
    """

    edge_type: EdgeType | None
    topology: TopologyHandle
    feature_book: BookHandle
    features: TensorHandle | None
    attrs: dict[str, TensorHandle] = field(default_factory=dict)
    out_dtype: str | None = None


@register_message
@dataclass(frozen=True)
class CacheHandle:
    """Copies of other partitions' rows in one store."""

    store: str
    ids: TensorHandle
    rows: TensorHandle


@register_message
@dataclass(frozen=True)
class SplitHandle:
    """The ids of one node type in one split: ``"train"``, ``"val"`` or ``"test"``."""

    name: str
    node_type: NodeType | None
    ids: TensorHandle


@register_message
@dataclass(frozen=True)
class DatasetHandle:
    """A ``DistDataset`` for another process of the same host: nothing is copied, only mapped.

    ``cached_graphs`` are the graphs of other partitions that it keeps at hand, ``node_orders`` the orders of all nodes.
    ``graph_mode``, ``device`` and ``device_groups`` (numbers of GPUs) are those of the graphs of a whole data set,
    which a GPU may sample from.
    """

    partition_idx: int
    edge_dir: EdgeDirection
    nodes: tuple[NodeHandle, ...]
    edges: tuple[EdgeHandle, ...]
    caches: tuple[CacheHandle, ...] = ()
    cached_graphs: tuple[DatasetHandle, ...] = ()
    splits: tuple[SplitHandle, ...] = ()
    constants: dict[Any, dict[str, Any]] = field(default_factory=dict)
    table_columns: dict[str, dict[Any, Any]] = field(default_factory=dict)
    node_orders: dict[Any, OrderHandle] = field(default_factory=dict)
    graph_mode: str = "CPU"
    device: int | None = None
    device_groups: tuple[tuple[int, ...], ...] = ()


def rows_handle(feature: Feature | None) -> TensorHandle | None:
    """Where the rows of a store lie, moved to shared memory if they are not; None stays None."""
    return None if feature is None else shared_memory.to_handle(feature.share_memory_().feature_tensor)


def out_dtype_name(feature: Feature | None) -> str | None:
    """The dtype that lookups cast to, by name; None where they do not."""
    if feature is None or feature.dtype == feature.feature_tensor.dtype:
        return None
    return str(feature.dtype).removeprefix("torch.")


def _out_dtypes(handles: Iterable[NodeHandle] | Iterable[EdgeHandle], key: str) -> dict[Any, torch.dtype]:
    return {getattr(one, key): getattr(torch, one.out_dtype) for one in handles if one.out_dtype is not None}


def book_handle(book: PartitionBook) -> BookHandle:
    """Describes a book; its tables move to shared memory."""
    book.share_tables()  # and it keeps them: their handles are good while they live
    return BookHandle(book.to_dict(), tuple(map(shared_memory.to_handle, book.tables)))


def open_book(handle: BookHandle, partition_idx: int) -> PartitionBook:
    """The book that ``book_handle`` described, seen from a partition."""
    return from_dict(handle.description, partition_idx, tuple(map(shared_memory.from_handle, handle.tables)))


def edge_book_handle(book: PartitionBook, *, with_ids: bool) -> BookHandle:
    """Describes a book of edge features; of those that lie with their edges, the ids of the edges if asked for."""
    if not isinstance(book, OwnedEdgesBook):
        return book_handle(book)
    ids = book.share_ids() if with_ids else None
    return BookHandle(book.to_dict(), () if ids is None else (shared_memory.to_handle(ids),))


def open_edge_book(handle: BookHandle, partition_idx: int, topology: Topology) -> PartitionBook:
    """The book that ``edge_book_handle`` described; ``topology`` has the edges of the partition."""
    if handle.description["kind"] != "edges":
        return open_book(handle, partition_idx)
    ids = {partition_idx: shared_memory.from_handle(handle.tables[0])} if handle.tables else {}
    return edge_book_from_dict(
        handle.description,
        partition_idx,
        ids=ids,
        open_ids=lambda partition: topology.edge_ids.sort().values if partition == partition_idx else None,
    )


def cache_handle(store: str, rows: CachedRows) -> CacheHandle:
    """Where copies of rows lie that are shared already."""
    return CacheHandle(store, shared_memory.to_handle(rows.ids), shared_memory.to_handle(rows.feats))


def open_copies(handles: Iterable[CacheHandle]) -> dict[str, CachedRows]:
    """Maps copies of rows, by store; stores that share ids share them here, too."""
    ids: dict[TensorHandle, torch.Tensor] = {}
    opened = {}
    for handle in handles:
        if handle.ids not in ids:
            ids[handle.ids] = shared_memory.from_handle(handle.ids)
        opened[handle.store] = CachedRows(ids[handle.ids], shared_memory.from_handle(handle.rows))
    return opened


def split_handles(splits: Mapping[str, Any]) -> tuple[SplitHandle, ...]:
    """Where the ids of splits lie that are shared already; each is a tensor, a dict by node type, or None."""
    return tuple(
        SplitHandle(name, node_type, shared_memory.to_handle(ids))
        for name, split in splits.items()
        for node_type, ids in by_type(split).items()
    )


def open_split(splits: Iterable[SplitHandle], name: str) -> dict[NodeType | None, torch.Tensor]:
    """Maps the ids of one split, by node type."""
    return {split.node_type: shared_memory.from_handle(split.ids) for split in splits if split.name == name}


def open_parts(handle: DatasetHandle) -> PartitionParts:
    """Maps a partition; without its caches, the graphs of others, and splits."""
    index, open_tensor = handle.partition_idx, shared_memory.from_handle
    nodes, edges = handle.nodes, handle.edges
    node_books = {node.node_type: open_book(node.book, index) for node in nodes}
    graphs = {edge.edge_type: Topology.from_handle(edge.topology) for edge in edges}
    own_feature_books = {
        node.node_type: open_book(node.feature_book, index) for node in nodes if node.feature_book is not None
    }
    return PartitionParts(
        partition_idx=index,
        num_nodes={node.node_type: node.count for node in nodes},
        node_books=node_books,
        node_feature_books={**node_books, **own_feature_books},
        edge_books={edge.edge_type: open_edge_book(edge.feature_book, index, graphs[edge.edge_type]) for edge in edges},
        graphs=graphs,
        node_features={node.node_type: open_tensor(node.features) for node in nodes if node.features is not None},
        node_labels=_open_labels(nodes, is_whole=False),
        whole_labels=_open_labels(nodes, is_whole=True),
        edge_features={edge.edge_type: open_tensor(edge.features) for edge in edges if edge.features is not None},
        node_times={node.node_type: open_tensor(node.times) for node in nodes if node.times is not None},
        earliest_nodes={node.node_type: node.earliest for node in nodes if node.earliest is not None},
        node_attrs={node.node_type: tensors_of(node.attrs) for node in nodes if node.attrs},
        edge_attrs={edge.edge_type: tensors_of(edge.attrs) for edge in edges if edge.attrs},
        constants=handle.constants,
        table_columns=handle.table_columns,
        node_orders=open_orders(handle.node_orders),
        node_out_dtypes=_out_dtypes(nodes, "node_type"),
        edge_out_dtypes=_out_dtypes(edges, "edge_type"),
    )


def _open_labels(nodes: Iterable[NodeHandle], *, is_whole: bool) -> dict[Any, torch.Tensor]:
    return {
        node.node_type: shared_memory.from_handle(node.labels)
        for node in nodes
        if node.labels is not None and node.has_all_labels == is_whole
    }

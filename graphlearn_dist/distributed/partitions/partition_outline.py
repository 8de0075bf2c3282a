"""What is known of a data set without its rows: types, counts, owners, and the shapes of what can be looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...data.schema import EDGE_FEATURE, NODE_FEATURE, NODE_LABEL, store_name
from ...partition import PartitionBook
from ...typing import EdgeType, NodeType
from ...utils.message_types import register_message
from ..dist_dataset import DistDataset


@register_message
@dataclass(frozen=True)
class BookOutline:
    """A partition book: ``to_dict`` of it, and the (owners, rows) of one that is a table."""

    description: dict[str, Any]
    tables: tuple[torch.Tensor, ...]


@register_message
@dataclass(frozen=True)
class NodeOutline:
    """One node type: its number of nodes, who owns them, and tensors of no rows, ``[0, ...]``, for what they have.

    ``feature_book`` is None where features lie with their nodes, ``earliest`` (the earliest node) where they have no
    times; ``attrs`` are further attributes by name.
    """

    node_type: NodeType | None
    count: int
    book: BookOutline
    feature_book: BookOutline | None
    features: torch.Tensor | None
    labels: torch.Tensor | None
    earliest: int | None = None
    attrs: dict[str, torch.Tensor] = field(default_factory=dict)


@register_message
@dataclass(frozen=True)
class EdgeOutline:
    """One edge type: nodes at the far end of a row, who owns its features, and tensors of no rows, ``[0, ...]``."""

    edge_type: EdgeType | None
    num_cols: int
    feature_book: BookOutline
    features: torch.Tensor | None
    weights: torch.Tensor | None
    times: torch.Tensor | None
    attrs: dict[str, torch.Tensor] = field(default_factory=dict)


@register_message
@dataclass(frozen=True)
class DatasetOutline:
    """A partitioned data set without its rows."""

    edge_dir: str
    nodes: tuple[NodeOutline, ...]
    edges: tuple[EdgeOutline, ...]
    table_columns: dict[str, dict[Any, Any]] = field(default_factory=dict)


def outline_of(dataset: DistDataset) -> DatasetOutline:
    """The outline of the whole data set that a partition belongs to; the same from every partition."""
    schema, stores = dataset.schema, dataset.stores()

    def empty(kind: str, index: int) -> torch.Tensor | None:
        store = stores.get(store_name(kind, index))
        return None if store is None else torch.empty((0, *store.shape[1:]), dtype=store.dtype)

    books, feature_books = dataset.node_books(), dataset.node_feature_books()
    edge_books, graphs = dataset.edge_books(), dataset.graphs()
    nodes = tuple(
        NodeOutline(
            name,
            count,
            _outline(books[name]),
            None if feature_books[name] is books[name] else _outline(feature_books[name]),
            empty(NODE_FEATURE, i),
            empty(NODE_LABEL, i),
            dataset.earliest_nodes.get(name),
            _without_rows(dataset.node_attrs.get(name, {})),
        )
        for i, (name, count) in enumerate(zip(schema.node_types, schema.num_nodes, strict=True))
    )
    edges = []
    for i, name in enumerate(schema.edge_types):
        topology, book = graphs[name].topo, _outline(edge_books[name])
        weights, times = (None if t is None else t[:0] for t in (topology.edge_weights, topology.edge_times))
        attrs = _without_rows(dataset.edge_attrs.get(name, {}))
        edges.append(EdgeOutline(name, topology.num_cols, book, empty(EDGE_FEATURE, i), weights, times, attrs))
    return DatasetOutline(dataset.edge_dir, nodes, tuple(edges), dataset.table_columns)


def _without_rows(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: rows[:0].clone() for name, rows in named.items()}


def _outline(book: PartitionBook) -> BookOutline:
    return BookOutline(book.to_dict(), book.tables)

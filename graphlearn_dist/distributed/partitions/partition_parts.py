"""What one partition is made of, from a partition directory or from a data set that is held whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...data.dataset import Dataset
from ...data.feature import Feature
from ...data.schema import by_type
from ...data.topology import Topology
from ...data.zone_order import ZoneOrder
from ...errors import InvalidArgumentError
from ...partition import GraphArrays, PartitionArrays, PartitionBook, PartitionLayout, RangePartitionBook
from ...utils.tensor import load_tensor
from .held_partition import LAYOUTS, HeldPartition


@dataclass(frozen=True, kw_only=True)
class PartitionParts:
    """One partition, everything by node type or edge type.

    Attributes:
        partition_idx: which one; the books are seen from it.
        num_nodes: nodes of the whole data set.
        node_books: who owns which node.
        node_feature_books: who owns which node's features.
        edge_books: who owns which edge's features; an ``OwnedEdgesBook`` where that is whoever has the edge.
        graphs: its rows.
        node_features: its rows ``[n, ...]`` in the order of ``node_feature_books``.
        node_labels: its rows in the order of ``node_books``.
        whole_labels: labels of all nodes by id, of types that are not in ``node_labels``.
        edge_features: its rows in the order of ``edge_books``.
        node_times: int64 ``[n]`` in the order of ``node_books``.
        earliest_nodes: the node of the least time in the whole data set.
        node_attrs: by name, its rows in the order of ``node_books``.
        edge_attrs: by name, its rows in the order of ``edge_books``.
        constants: by type and name, what has no rows.
        table_columns: of nodes and edges by type, what is known of the tables that the data set was built from.
        node_orders: the orders of all nodes.
        node_out_dtypes: the dtype that lookups of node features give, where that is not theirs.
        edge_out_dtypes: likewise of edge features.
    """

    partition_idx: int
    num_nodes: Mapping[Any, int]
    node_books: Mapping[Any, PartitionBook]
    node_feature_books: Mapping[Any, PartitionBook]
    edge_books: Mapping[Any, PartitionBook]
    graphs: Mapping[Any, Topology]
    node_features: Mapping[Any, torch.Tensor] = field(default_factory=dict)
    node_labels: Mapping[Any, torch.Tensor] = field(default_factory=dict)
    whole_labels: Mapping[Any, torch.Tensor] = field(default_factory=dict)
    edge_features: Mapping[Any, torch.Tensor] = field(default_factory=dict)
    node_times: Mapping[Any, torch.Tensor] = field(default_factory=dict)
    earliest_nodes: Mapping[Any, int] = field(default_factory=dict)
    node_attrs: Mapping[Any, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    edge_attrs: Mapping[Any, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    constants: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    table_columns: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    node_orders: Mapping[Any, ZoneOrder] = field(default_factory=dict)
    node_out_dtypes: Mapping[Any, torch.dtype] = field(default_factory=dict)
    edge_out_dtypes: Mapping[Any, torch.dtype] = field(default_factory=dict)

    def graphs_of(self, partition_idx: int, graphs: Mapping[Any, Topology]) -> PartitionParts:
        """Another partition of the same data set: its graphs, and no rows of features, labels or times."""

        def seen_from(books: Mapping[Any, PartitionBook]) -> dict[Any, PartitionBook]:
            return {key: book.for_partition(partition_idx) for key, book in books.items()}

        return PartitionParts(
            partition_idx=partition_idx,
            num_nodes=self.num_nodes,
            node_books=seen_from(self.node_books),
            node_feature_books=seen_from(self.node_feature_books),
            edge_books=seen_from(self.edge_books),
            graphs=graphs,
        )

    def with_labels_of(self, files: Any) -> PartitionParts:
        """With files of all nodes' labels, by node type (or bare), in place of those of its own nodes.

        Raises:
            InvalidArgumentError: an unknown node type, or not one row for each node.
        """
        labels, whole = dict(self.node_labels), dict(self.whole_labels)
        for node_type, path in by_type(files).items():
            if node_type not in self.node_books:
                raise InvalidArgumentError(
                    f"whole_node_label_file: unknown node type {node_type!r}; got {list(self.node_books)}"
                )
            rows, book = load_tensor(path, "whole_node_label_file"), self.node_books[node_type]
            if rows.dim() < 1 or len(rows) != book.num_ids:
                raise InvalidArgumentError(
                    f"whole_node_label_file: expected labels [{book.num_ids}, ...], got {list(rows.shape)} in {path}"
                )
            labels.pop(node_type, None)
            whole[node_type] = rows
        return replace(self, node_labels=labels, whole_labels=whole)


def parts_in(layout: PartitionLayout, arrays: PartitionArrays, partition_idx: int) -> PartitionParts:
    """A partition of a partition directory, over its mapped arrays."""
    nodes = layout.nodes
    node_books = {node_type: layout.node_book(node_type, partition_idx) for node_type in nodes}
    return PartitionParts(
        partition_idx=partition_idx,
        num_nodes={node_type: info.count for node_type, info in nodes.items()},
        node_books=node_books,
        node_feature_books={
            node_type: node_books[node_type]
            if info.feature_book is info.book
            else layout.node_feature_book(node_type, partition_idx)
            for node_type, info in nodes.items()
        },
        edge_books={edge_type: layout.edge_feature_book(edge_type, partition_idx) for edge_type in layout.edges},
        graphs=topologies(arrays.graphs, layout.edge_dir),
        node_features=arrays.node_feats,
        node_labels=arrays.node_labels,
        edge_features=arrays.edge_feats,
        node_times=arrays.node_times,
        earliest_nodes={key: info.earliest for key, info in nodes.items() if info.earliest is not None},
        node_attrs=arrays.node_attrs,
        edge_attrs=arrays.edge_attrs,
        constants=layout.constants,
        node_orders={key: info.order for key, info in nodes.items() if info.order is not None},
        table_columns=layout.columns,
    )


def parts_of(dataset: Dataset) -> PartitionParts:
    """The one partition of a data set that is held whole."""
    schema = dataset.schema
    counts = dict(zip(schema.node_types, schema.num_nodes, strict=True))
    graphs = {edge_type: graph.topo for edge_type, graph in dataset.graphs().items()}
    node_books = {node_type: RangePartitionBook.near_equal(count, 1) for node_type, count in counts.items()}
    labels = {
        key: Feature(rows, dataset._label_rows.get(key), dtype=None)
        for key, rows in by_type(dataset.node_labels).items()
    }
    return PartitionParts(
        partition_idx=0,
        num_nodes=counts,
        node_books=node_books,
        node_feature_books=node_books,
        edge_books={key: RangePartitionBook.near_equal(topology.num_edge_ids, 1) for key, topology in graphs.items()},
        graphs=graphs,
        node_features={key: _rows_by_id(feature) for key, feature in by_type(dataset.node_features).items()},
        node_labels={key: _rows_by_id(rows) for key, rows in labels.items()},
        edge_features={key: _rows_by_id(feature) for key, feature in by_type(dataset.edge_features).items()},
        node_times=dataset.node_times,
        earliest_nodes=dataset.earliest_nodes,
        node_attrs=dataset.node_attrs,
        edge_attrs=dataset.edge_attrs,
        constants=dataset.constants,
        node_orders=dataset.node_orders,
        table_columns=dataset.table_columns,
    )


def parts_of_books(held: HeldPartition) -> PartitionParts:
    """Of a partition, its books alone."""
    return PartitionParts(
        partition_idx=held.given.partition_idx,
        num_nodes=held.num_nodes(),
        node_books=held.node_books,
        node_feature_books=held.node_feature_books,
        edge_books=held.edge_books,
        graphs={},
    )


def topologies(graphs: Mapping[Any, GraphArrays], edge_dir: Any) -> dict[Any, Topology]:
    """The rows of each edge type, over the arrays of a partition directory."""
    return {
        edge_type: Topology.from_arrays(
            graph.indptr,
            graph.indices,
            graph.edge_ids,
            layout=LAYOUTS[edge_dir],
            num_cols=graph.num_cols,
            edge_weights=graph.weights,
            edge_times=graph.times,
            folder=graph.folder,
        )
        for edge_type, graph in graphs.items()
    }


def _rows_by_id(feature: Feature) -> torch.Tensor:
    """All rows in the order of ids, as lookups give them: the tensor itself, or a copy where ``id2index`` says that
    rows lie otherwise or where lookups cast."""
    if feature.id2index is None and feature.dtype == feature.feature_tensor.dtype:
        return feature.feature_tensor
    return feature.cpu_get(torch.arange(feature.size(0) if feature.id2index is None else len(feature.id2index)))

"""A partitioned graph: this partition's rows, and who holds the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..core import check_index_tensor
from ..data.graph import Graph
from ..data.schema import by_type
from ..errors import InvalidArgumentError
from ..partition import PartitionBook
from ..partition.partition_book import as_book, check_partition_idx
from ..typing import EdgeType, NodeType
from ..utils.values import label_of


class DistGraph:
    """One partition of a graph, and the books that say where the rest is.

    Args:
        num_partitions: partitions of the whole.
        partition_idx: this one.
        local_graph: its rows; a ``Graph``, or a dict by edge type.
        node_pb: who owns which node; a book or the owner of each as a tensor, or a dict by node type.
        edge_pb: who owns which edge; likewise by edge type.
    """

    def __init__(
        self,
        num_partitions: int,
        partition_idx: int,
        local_graph: Graph | Mapping[EdgeType, Graph],
        node_pb: Any,
        edge_pb: Any = None,
    ) -> None:
        self.num_partitions = num_partitions
        self.partition_idx = check_partition_idx(partition_idx, num_partitions)
        self.local_graph = local_graph
        self.node_pb = node_pb
        self.edge_pb = edge_pb
        self._node_books = books_of("node_pb", node_pb, num_partitions, partition_idx)
        self._edge_books = books_of("edge_pb", edge_pb, num_partitions, partition_idx)

    def get_local_graph(self, etype: EdgeType | None = None) -> Graph:
        """This partition's rows of an edge type."""
        graph: Graph = _entry(by_type(self.local_graph), etype, "etype: unknown edge type")
        return graph

    def get_node_partitions(self, ids: torch.Tensor, ntype: NodeType | None = None) -> torch.Tensor:
        """Owner of each node, int64 ``[n]``; ``UnknownIdError`` for an id outside the graph."""
        return owners_of(_entry(self._node_books, ntype, "ntype: unknown node type"), ids)

    def get_edge_partitions(self, eids: torch.Tensor, etype: EdgeType | None = None) -> torch.Tensor:
        """Owner of each edge, int64 ``[n]``; ``UnknownIdError`` for an id outside the graph."""
        return owners_of(_entry(self._edge_books, etype, "etype: no book for edge type"), eids)


def owners_of(book: PartitionBook, ids: torch.Tensor) -> torch.Tensor:
    """Owner of each id, int64 ``[n]``, checked."""
    owners: torch.Tensor = book[check_index_tensor(ids, "ids", num_ids=book.num_ids)]
    return owners.long()


def books_of(name: str, books: Any, num_partitions: int, partition_idx: int) -> dict[Any, PartitionBook]:
    """Books, or owners as tensors, by type; of so many partitions.

    Raises:
        InvalidArgumentError: there is something else, or a book of another number of partitions.
    """
    return {
        kind: as_book(book, num_partitions, partition_idx, name=label_of(name, kind))
        for kind, book in by_type(books).items()
    }


def _entry(entries: dict[Any, Any], kind: Any, message: str) -> Any:
    if kind not in entries:
        raise InvalidArgumentError(f"{message} {kind!r}; there are {sorted(map(str, entries))}")
    return entries[kind]

"""One partition's files from what came in any order: graph rows from edges, feature rows by local row, tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import _C
from ..data.zone_order import ZoneOrder
from ..errors import InvalidArgumentError, StorageError
from ..utils.system.disk import map_new_array
from ..utils.values import check_distinct, label_of
from .edge_book import EdgeBook, OwnedEdgesBook
from .layout import AnyBook, EdgeKey, NodeKey, array_path, table_paths
from .partition_book import (
    GLTPartitionBook,
    PartitionBook,
    PermutedPartitionBook,
    RangePartitionBook,
    TablePartitionBook,
    ZonePartitionBook,
)
from .storage import ArrayFile, checksum_of, dtype_name, stored_dtype, write_tensor

_INT32_END = 1 << 31


def as_stored_book(book: PartitionBook | torch.Tensor, num_parts: int) -> AnyBook:
    """A book in a form that a partition directory can hold; formulas stay formulas.

    Args:
        book: any book, or the owner of each id (any integer dtype ``[num_ids]``).
        num_parts: number of partitions of the directory.

    Raises:
        InvalidArgumentError: the book has another number of partitions, or an owner is none of them.
    """
    if isinstance(book, (GLTPartitionBook, torch.Tensor)):
        return TablePartitionBook.from_owners(book.as_subclass(torch.Tensor), num_parts)
    if book.num_partitions != num_parts:
        raise InvalidArgumentError(f"book: expected {num_parts} partitions, got {book.num_partitions}")
    if isinstance(book, (RangePartitionBook, PermutedPartitionBook, TablePartitionBook)):
        return book
    # Those of zones too: only the book of the nodes themselves reads its places from the order.
    return TablePartitionBook.from_owners(book[torch.arange(book.num_ids)], num_parts)


def write_edge_ids(root: Path, key: EdgeKey, partition_idx: int, book: OwnedEdgesBook) -> ArrayFile:
    """Writes the edge ids that stand beside a partition's edge features, ascending."""
    ids = book.ids_at_hand(partition_idx)
    if ids is None:
        raise InvalidArgumentError(f"partition_idx: the edges of partition {partition_idx} are not on this machine")
    return write_tensor(root, array_path("edge_feat", key, "ids", partition_idx), ids)


def write_tables(root: Path, group: str, key: NodeKey | EdgeKey, book: EdgeBook) -> list[ArrayFile]:
    """Writes the tables of a book, if it has any; ``group`` is ``node_book``, ``node_feat_book`` or ``edge_book``."""
    if isinstance(book, ZonePartitionBook):
        return write_order(root, key, book.order)
    paths = table_paths(book.to_dict(), group, key)
    return [write_tensor(root, path, tensor) for path, tensor in zip(paths, book.tables, strict=True)]


def write_order(root: Path, key: NodeKey | EdgeKey, order: ZoneOrder) -> list[ArrayFile]:
    """Writes the order of the nodes of a type."""
    arrays = {"place": order.place, "bounds": order.bounds}
    return [write_tensor(root, array_path("order", key, name), array) for name, array in arrays.items()]


@dataclass(frozen=True)
class PartitionEdges:
    """Edges of one type that lie in one partition, in any order.

    Attributes:
        rows: int ``[num_edges]``, local rows of the endpoint that the partition owns.
        cols: int ``[num_edges]``, global ids of the other endpoint.
        edge_ids: int ``[num_edges]``, distinct global ids.
        weights: float ``[num_edges]``, or None.
        times: int ``[num_edges]``, or None.
        num_rows: nodes of the partition.
        num_cols: nodes of the other endpoint's type, over all partitions.
        end_edge_id: all edge ids, of other partitions too, are below this; it decides how wide they are stored.
    """

    rows: torch.Tensor
    cols: torch.Tensor
    edge_ids: torch.Tensor
    weights: torch.Tensor | None
    times: torch.Tensor | None
    num_rows: int
    num_cols: int
    end_edge_id: int


def write_graph(root: Path, key: EdgeKey, partition_idx: int, edges: PartitionEdges, pool: Any) -> list[ArrayFile]:
    """Writes the rows of a partition in canonical order, sorted by (neighbor id, edge id), with times by time first.

    Raises:
        InvalidArgumentError: two edges have one id, or a weight is negative, infinite or not a number.
        UnknownIdError: an endpoint is outside the graph.
    """
    check_distinct(f"{label_of('edge_ids', key)} of partition {partition_idx}", edges.edge_ids)
    coo = (edges.rows.contiguous(), edges.cols.contiguous(), edges.edge_ids.contiguous())
    data = {"times": edges.times, "weights": edges.weights}
    names = ["indptr", "indices", "edge_ids", *(name for name, tensor in data.items() if tensor is not None)]
    capsules = _C.build_csr(*coo, edges.num_rows, edges.num_cols, pool, **data)
    arrays = dict(zip(names, map(torch.utils.dlpack.from_dlpack, capsules), strict=True))
    if edges.end_edge_id > _INT32_END:
        arrays["edge_ids"] = arrays["edge_ids"].long()
    return [write_tensor(root, array_path("graph", key, name, partition_idx), arrays[name]) for name in names]


class RowsFile:
    """An array file whose rows come in any order, a piece at a time: memory is what one piece takes.

    Args:
        root: the directory.
        path: of the file in it.
        dtype: of the rows, and what is stored.
        shape: ``(num_rows, ...)``.
    """

    def __init__(self, root: Path, path: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self._root, self._path, self._dtype, self._shape = root, path, dtype, shape
        self._is_there = torch.zeros(shape[0], dtype=torch.bool)
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        numpy_dtype = stored_dtype(dtype)
        if 0 in shape:  # nothing to map
            np.save(target, np.empty(shape, numpy_dtype))
            self._mapped, self._rows = None, torch.empty(shape, dtype=dtype)
        else:
            self._mapped = map_new_array(target, numpy_dtype, shape)
            bits = torch.from_numpy(self._mapped)
            self._rows = bits.view(dtype) if bits.dtype != dtype else bits

    def put(self, rows: torch.Tensor, values: torch.Tensor, name: str = "ids") -> None:
        """Writes ``values[i]`` to row ``rows[i]`` (int64 ``[n]``).

        Raises:
            InvalidArgumentError: wrong dtype or shape, or a row came before; ``name`` says whose ids they are.
        """
        if values.dtype != self._dtype or tuple(values.shape) != (len(rows), *self._shape[1:]):
            raise InvalidArgumentError(
                f"{name}: expected rows {dtype_name(self._dtype)} [{len(rows)}, {self._shape[1:]}], got {values.dtype} "
                f"{tuple(values.shape)}"
            )
        check_distinct(f"{name} (local rows)", rows)
        again = self._is_there[rows].nonzero()
        if len(again):
            raise InvalidArgumentError(f"{name}[{int(again[0])}]: this row came before, in another piece")
        self._is_there[rows] = True
        self._rows[rows] = values

    @property
    def missing_row(self) -> int | None:
        """A row that did not come yet, or None."""
        missing = (~self._is_there).nonzero()
        return int(missing[0]) if len(missing) else None

    def close(self) -> ArrayFile:
        """Ends the file; StorageError unless every row came."""
        if self.missing_row is not None:
            raise StorageError(f"{self._path}: row {self.missing_row} was never written")
        if self._mapped is not None:
            self._mapped.flush()
        self._rows, self._mapped = torch.empty(0), None
        target = self._root / self._path
        size = target.stat().st_size
        return ArrayFile(self._path, dtype_name(self._dtype), self._shape, size, checksum_of(target))

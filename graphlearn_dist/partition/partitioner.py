"""Partitioners: from a graph in memory to a partition directory."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import _C
from ..data.columns import check_columns
from ..data.schema import earliest
from ..data.zone_order import ZoneOrder
from ..errors import InvalidArgumentError
from ..typing import EdgeType, NodeType
from ..utils.shown import shown
from ..utils.tensor import convert_to_tensor
from ..utils.values import check_finite, is_whole, label_of
from .assembly import as_stored_book, write_edge_ids, write_order, write_tables
from .attributes import attr_path, constant_inputs, write_constants
from .edge_book import EdgeBook, OwnedEdgesBook, default_edge_book
from .ingest import (
    EdgeInput,
    NodeInput,
    by_type,
    edge_inputs,
    node_inputs,
    node_time_inputs,
    to_tensor,
    with_node_times,
)
from .layout import AnyBook, EdgeKey, NodeKey, array_path
from .meta_entries import edge_entry, make_meta, node_entry, write_meta
from .partition_book import (
    PartitionBook,
    PermutedPartitionBook,
    RangePartitionBook,
    TablePartitionBook,
    ZonePartitionBook,
)
from .storage import ArrayFile, new_directory, row_chunks, write_array, write_tensor, written_in_place

EDGE_DIRS = {"by_src": "out", "by_dst": "in"}
_MOST_PARTS = (1 << 31) - 1


def _from_core(capsules: Sequence[Any]) -> list[torch.Tensor]:
    return [torch.utils.dlpack.from_dlpack(capsule) for capsule in capsules]


class PartitionerBase(ABC):
    """Writes a partition directory (docs/partition_format.md). Subclasses say which partition gets which node.

    Homogeneous graphs are given as tensors, heterogeneous ones as dictionaries by node or edge type; ``num_nodes``
    decides which. Every id is checked here, so that later stages can rely on it.

    Args:
        output_dir: the directory to write; it may exist, and have files, but no partitions. It, or what is written into
            it, appears when everything is written.
        num_parts: number of partitions.
        num_nodes: number of nodes (by node type).
        edge_index: int32 or int64 ``[2, num_edges]``, or a pair: sources and targets (by edge type).
        node_feat: ``[num_nodes, ...]`` (by node type).
        node_feat_dtype: what features are stored as; None keeps their dtype, as ``Dataset`` does.
        edge_feat: ``[num_edges, ...]``, by edge id (by edge type).
        edge_feat_dtype: likewise.
        edge_weights: ``[num_edges]``, in the order of ``edge_index``, finite and at least 0 (by edge type).
        edge_assign_strategy: ``"by_src"``: a partition has the out-edges of its nodes; ``"by_dst"``: the in-edges.
        chunk_size: feature rows in memory at a time while writing.
        node_labels: ``[num_nodes, ...]``, any dtype (by node type).
        node_split: ``(train, val, test)`` ids, each may be None (by node type: a dictionary of such, or three
            dictionaries as ``Dataset.init_node_split`` takes them).
        edge_ids: distinct ids of the edges, in the order of ``edge_index`` (by edge type); default: positions.
        seed: decides a random assignment; the same seed gives the same partitions.
        num_threads: threads for sorting edges; it does not change the result.
        edge_times: int64 or int32 ``[num_edges]``, in the order of ``edge_index`` (by edge type).
        node_times: int64 or int32 ``[num_nodes]`` (by node type): an edge gets the time of its neighbor, the end that
            sampling reaches.
        node_feat_pb: who keeps which node's features, where that is not who has the node: a book, or the partition of
            each node, any integer dtype ``[num_nodes]`` (by node type).
        edge_feat_pb: who keeps which edge's features, by edge id, likewise (by edge type); default: whoever has the
            edge.
        allow_nonfinite: take features that are infinite or no number as they are, without a look at them.
        node_attrs: attributes that batches carry under their names: by name ``[num_nodes, ...]`` (by node type).
        edge_attrs: likewise, by edge id (by edge type).
        constants: attributes without rows, by type (None: of the graph) and name: tensors, or what JSON holds.

    Raises:
        InvalidArgumentError: an argument is wrong.
        UnknownIdError: an id outside the graph, with its position.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | dict[NodeType, int],
        edge_index: Any,
        node_feat: Any = None,
        node_feat_dtype: torch.dtype | None = None,
        edge_feat: Any = None,
        edge_feat_dtype: torch.dtype | None = None,
        edge_weights: Any = None,
        edge_assign_strategy: str = "by_src",
        chunk_size: int = 10000,
        *,
        node_labels: Any = None,
        node_split: Any = None,
        edge_ids: Any = None,
        seed: int = 0,
        num_threads: int = 1,
        edge_times: Any = None,
        node_times: Any = None,
        node_feat_pb: Any = None,
        edge_feat_pb: Any = None,
        allow_nonfinite: bool = False,
        node_attrs: Any = None,
        edge_attrs: Any = None,
        constants: Any = None,
    ) -> None:
        for name, value in (("num_parts", num_parts), ("chunk_size", chunk_size)):
            if not is_whole(value) or value < 1:
                raise InvalidArgumentError(f"{name}: expected an int >= 1, got {shown(value)}")
        if num_parts > _MOST_PARTS:
            raise InvalidArgumentError(f"num_parts: expected at most {_MOST_PARTS}, got {num_parts}")
        if edge_assign_strategy not in EDGE_DIRS:
            raise InvalidArgumentError(
                f"edge_assign_strategy: expected by_src or by_dst, got {shown(edge_assign_strategy)}"
            )
        self.output_dir = new_directory(output_dir)
        self.num_parts = num_parts
        self.seed = seed
        self.edge_dir = EDGE_DIRS[edge_assign_strategy]
        self.chunk_size = chunk_size
        self.node_feat_dtype = node_feat_dtype
        self.edge_feat_dtype = edge_feat_dtype
        self.nodes: dict[NodeKey, NodeInput] = node_inputs(num_nodes, node_feat, node_labels, node_split)
        counts = {key: node.count for key, node in self.nodes.items()}
        edges = edge_inputs(counts, edge_index, edge_ids, edge_weights, edge_feat, edge_times)
        self.node_times: dict[NodeKey, torch.Tensor] = node_time_inputs(counts, node_times)
        self.edges: dict[EdgeKey, EdgeInput] = with_node_times(edges, self.node_times, self.edge_dir)
        self.node_attrs = check_columns("node_attrs", node_attrs, counts)
        self.constants = constant_inputs(constants, {*counts, *self.edges})
        edge_counts = {key: edge.num_edge_ids for key, edge in self.edges.items()}
        self._node_feat_books = _feature_books("node_feat_pb", node_feat_pb, counts, num_parts)
        self._edge_feat_books = _feature_books("edge_feat_pb", edge_feat_pb, edge_counts, num_parts)
        if not allow_nonfinite:
            self._check_features()
        self.edge_attrs = check_columns("edge_attrs", edge_attrs, edge_counts)
        self._pool = _C.ThreadPool(num_threads)

    def _check_features(self) -> None:
        for name, given in (("node_feat", self.nodes), ("edge_feat", self.edges)):
            for key, rows in given.items():
                if rows.feat is not None:
                    check_finite(label_of(name, key), rows.feat)

    @abstractmethod
    def _partition_node(self, ntype: NodeType | None = None) -> tuple[Sequence[torch.Tensor] | None, PartitionBook]:
        """Assigns the nodes of a type; what a partitioner of your own has to define.

        Returns:
            The ids of each partition, or None, and a book that says the same: one of this package, or an owner for
            each id as a ``GLTPartitionBook``. Rows are in the order of the book; ids that contradict it are an error.
        """

    def _node_order(self, ntype: NodeType | None = None) -> ZoneOrder | None:
        """The order of the nodes of a type, which the directory then has too; that of a book of zones it has anyhow."""
        return None

    def _cache_node(self, ntype: NodeType | None = None) -> Sequence[torch.Tensor | None]:
        """For each partition the ids, int64, of other partitions' nodes whose features it keeps a copy of, or None."""
        return [None] * self.num_parts

    def _write_beside(self, root: Path) -> list[ArrayFile]:
        """Writes what a partitioner knows beside its books."""
        return []

    def _node_book(self, key: NodeKey) -> AnyBook:
        ids, given = self._partition_node(key)
        name, count = label_of("_partition_node", key), self.nodes[key].count
        book = given if isinstance(given, ZonePartitionBook) else as_stored_book(given, self.num_parts)
        if book.num_ids != count:
            raise InvalidArgumentError(f"{name}: expected a book of {count} nodes, got one of {book.num_ids}")
        if ids is not None:
            sizes = [book.partition_size(p) for p in range(self.num_parts)]
            if [len(part) for part in ids] != sizes or any(bool((book[part] != p).any()) for p, part in enumerate(ids)):
                raise InvalidArgumentError(f"{name}: the ids of the partitions are not what the book says")
        return book

    def get_edge_index(self, etype: EdgeType | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Sources and targets of an edge type."""
        return self.edges[etype].row, self.edges[etype].col

    def get_node_feat(self, ntype: NodeType | None = None) -> torch.Tensor | None:
        """The features of a node type."""
        return self.nodes[ntype].feat

    def get_edge_feat(self, etype: EdgeType | None = None) -> torch.Tensor | None:
        """The features of an edge type."""
        return self.edges[etype].feat

    def partition(self, with_feature: bool = True, graph_caching: bool = False) -> Path:
        """Writes everything under a temporary name beside ``output_dir``, and gives it this name at the end.

        Args:
            with_feature: also write node and edge features.
            graph_caching: changes nothing: the directory holds the whole graph, a partition in each ``part<i>``, and
                ``load_partition(..., graph_caching=True)`` puts it together where all of them are.

        Returns:
            ``output_dir``. An interrupted run leaves none, at most a hidden ``.<name>.partial-*`` directory, which the
            next run removes.
        """
        with written_in_place(self.output_dir) as temporary:
            write_meta(temporary, _Writer(self, temporary, with_feature).write())
        return self.output_dir


def _feature_books(name: str, given: Any, counts: Mapping[Any, int], num_parts: int) -> dict[Any, AnyBook]:
    books = {}
    for key, book in by_type(name, given, counts).items():
        label, count = label_of(name, key), counts[key]
        books[key] = as_stored_book(book if isinstance(book, PartitionBook) else to_tensor(label, book), num_parts)
        if books[key].num_ids != count:
            raise InvalidArgumentError(f"{label}: expected a book of {count} ids, got one of {books[key].num_ids}")
    return books


class RandomPartitioner(PartitionerBase):
    """Assigns nodes at random, evenly, by a keyed bijection of their ids: no table, no memory. See PartitionerBase."""

    def _partition_node(self, ntype: NodeType | None = None) -> tuple[None, PartitionBook]:
        return None, random_book(self.nodes[ntype].count, self.num_parts, self.seed, ntype)


def random_book(num_nodes: int, num_parts: int, seed: int, ntype: NodeKey) -> AnyBook:
    """The random assignment of a node type: a function of these four, wherever it is asked for."""
    if num_parts == 1:  # nothing to spread: rows in the order of ids let a batch be sampled in one call
        return RangePartitionBook.near_equal(num_nodes, 1)
    digest = hashlib.blake2b(f"{seed}/{ntype or ''}".encode(), digest_size=8).digest()
    return PermutedPartitionBook(num_nodes, num_parts, int.from_bytes(digest, "little"))


class RangePartitioner(PartitionerBase):
    """Assigns contiguous ranges of ids, for graphs whose numbering has locality. See PartitionerBase.

    Args:
        partition_ranges: ``(begin, end)`` of each partition (by node type); default: near-equal ranges.
    """

    def __init__(self, *args: Any, partition_ranges: Any = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ranges = by_type("partition_ranges", partition_ranges, self.nodes)

    def _partition_node(self, ntype: NodeType | None = None) -> tuple[None, PartitionBook]:
        num_nodes = self.nodes[ntype].count
        if ntype not in self._ranges:
            return None, RangePartitionBook.near_equal(num_nodes, self.num_parts)
        ranges, name = self._ranges[ntype], label_of("partition_ranges", ntype)
        if len(ranges) != self.num_parts:
            raise InvalidArgumentError(f"{name}: expected {self.num_parts} ranges, one a partition, got {len(ranges)}")
        if not all(hasattr(each, "__len__") and len(each) == 2 for each in ranges):
            raise InvalidArgumentError(f"{name}: expected (begin, end) of each partition, got {ranges!r:.200}")
        if ranges[-1][1] != num_nodes:
            raise InvalidArgumentError(f"{name}: expected to end at num_nodes={num_nodes}, got {ranges[-1][1]}")
        return None, RangePartitionBook(ranges, 0)


class TablePartitioner(PartitionerBase):
    """Assigns nodes as told, for partitions made elsewhere (METIS, LDG). See PartitionerBase.

    Args:
        node_owners: the partition of each node, any integer dtype ``[num_nodes]`` (by node type).
    """

    def __init__(self, *args: Any, node_owners: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._owners = by_type("node_owners", node_owners, self.nodes)

    def _partition_node(self, ntype: NodeType | None = None) -> tuple[None, PartitionBook]:
        owners, num_nodes = self._owners.get(ntype), self.nodes[ntype].count
        name = label_of("node_owners", ntype)
        if owners is None or len(owners) != num_nodes:
            found = "None" if owners is None else len(owners)
            raise InvalidArgumentError(f"{name}: expected the owners of {num_nodes} nodes, got {found}")
        owners = convert_to_tensor(owners, name=name)
        return None, TablePartitionBook.from_owners(owners, self.num_parts, name=name)


class _Writer:
    """One run of a partitioner. Extra memory: one edge type in CSR form, one partition of it, a feature chunk."""

    def __init__(self, source: PartitionerBase, root: Path, with_feature: bool) -> None:
        self.source = source
        self.root = root
        self.with_feature = with_feature
        self.files: list[ArrayFile] = []
        self.books: dict[NodeKey, AnyBook] = {}

    def write(self) -> dict[str, Any]:
        """Writes all arrays; returns what META.json will say."""
        source = self.source
        for key in source.nodes:
            self.books[key] = source._node_book(key)
        nodes = [self._write_nodes(key, node) for key, node in source.nodes.items()]
        edges = [self._write_edges(key, edge) for key, edge in source.edges.items()]
        constants = list(write_constants(self.root, source.constants))
        self.files += [file for _, file in constants if file is not None]
        self.files += source._write_beside(self.root)
        entries = [entry for entry, _ in constants]
        return make_meta(source.num_parts, source.edge_dir, nodes, edges, self.files, entries)

    def _add(self, path: str, tensor: torch.Tensor) -> None:
        self.files.append(write_tensor(self.root, path, tensor))

    def _add_rows(self, path: str, data: torch.Tensor, ids: torch.Tensor, dtype: torch.dtype | None) -> None:
        stored = data.dtype if dtype is None else dtype
        chunks = row_chunks(data, ids, stored, self.source.chunk_size)
        self.files.append(write_array(self.root, path, chunks, stored, (len(ids), *data.shape[1:])))

    def _write_nodes(self, key: NodeKey, node: NodeInput) -> dict[str, Any]:
        source = self.source
        book, own_feature_book = self.books[key], source._node_feat_books.get(key)
        feature_book, times = own_feature_book or book, source.node_times.get(key)
        self.files += write_tables(self.root, "node_book", key, book)
        if own_feature_book is not None:
            self.files += write_tables(self.root, "node_feat_book", key, own_feature_book)
        for name, ids in node.split.items():
            self._add(array_path("node_split", key, name), ids)
        for p in range(self.source.num_parts):
            if node.feat is not None and self.with_feature:
                path = array_path("node_feat", key, "x", p)
                self._add_rows(path, node.feat, feature_book.local_ids(p), self.source.node_feat_dtype)
            if node.label is not None:
                self._add_rows(array_path("node_label", key, "y", p), node.label, book.local_ids(p), None)
            if times is not None:
                self._add_rows(array_path("node_time", key, "t", p), times, book.local_ids(p), None)
            for name, rows in source.node_attrs.get(key, {}).items():
                self._add_rows(attr_path("node_attr", key, name, p), rows, book.local_ids(p), None)
        if node.feat is not None and self.with_feature:
            self._write_caches(key, node.feat, feature_book)
        first = earliest(times) if times is not None and len(times) else None
        order = source._node_order(key)
        if order is not None and not isinstance(book, ZonePartitionBook):
            self.files += write_order(self.root, key, order)
        return node_entry(key, book, own_feature_book, first, order)

    def _write_caches(self, key: NodeKey, feat: torch.Tensor, feature_book: AnyBook) -> None:
        for p, given in enumerate(self.source._cache_node(key)):
            if given is not None:
                ids = given[feature_book[given] != p]  # its own rows it has already
                self._add(array_path("node_feat", key, "cache_ids", p), ids)
                self._add_rows(array_path("node_feat", key, "cache_x", p), feat, ids, self.source.node_feat_dtype)

    def _write_edges(self, key: EdgeKey, edge: EdgeInput) -> dict[str, Any]:
        outgoing = self.source.edge_dir == "out"
        row_type, col_type = (None, None) if key is None else (key[0], key[2]) if outgoing else (key[2], key[0])
        row, col = (edge.row, edge.col) if outgoing else (edge.col, edge.row)
        num_rows, num_cols = self.source.nodes[row_type].count, self.source.nodes[col_type].count
        pool = self.source._pool
        csr = _C.build_csr(row, col, edge.edge_ids, num_rows, num_cols, pool, edge.times, edge.weights)
        names = ["indptr", "indices", "edge_ids"]
        names += ["times"] * (edge.times is not None) + ["weights"] * (edge.weights is not None)
        whole = dict(zip(names, _from_core(csr), strict=True))
        part_counts, edge_ids = [], []
        for p in range(self.source.num_parts):
            ids, data = self.books[row_type].local_ids(p), (whole.get("times"), whole.get("weights"))
            taken = _C.take_csr_rows(whole["indptr"], whole["indices"], whole["edge_ids"], ids, num_cols, pool, *data)
            arrays = dict(zip(names, _from_core(taken), strict=True))
            part_counts.append(len(arrays["indices"]))
            has_rows = (edge.feat is not None and self.with_feature) or key in self.source.edge_attrs
            if has_rows and key not in self.source._edge_feat_books:
                edge_ids.append(arrays["edge_ids"].sort().values)
            for name, tensor in arrays.items():
                self._add(array_path("graph", key, name, p), tensor)
        book: EdgeBook | None = self.source._edge_feat_books.get(key)
        if book is None:
            book = default_edge_book(edge.num_edge_ids, part_counts, dict(enumerate(edge_ids)).get)
        self._write_edge_feat(key, edge, book)
        return edge_entry(key, part_counts, book)

    def _write_edge_feat(self, key: EdgeKey, edge: EdgeInput, book: EdgeBook) -> None:
        self.files += write_tables(self.root, "edge_book", key, book)
        source, attrs = self.source, self.source.edge_attrs.get(key, {})
        feat = edge.feat if self.with_feature else None
        for p in range(source.num_parts if feat is not None or attrs else 0):
            ids = book.local_ids(p)
            if feat is not None:
                self._add_rows(array_path("edge_feat", key, "x", p), feat, ids, source.edge_feat_dtype)
            for name, rows in attrs.items():
                self._add_rows(attr_path("edge_attr", key, name, p), rows, ids, None)
            if isinstance(book, OwnedEdgesBook):
                self.files.append(write_edge_ids(self.root, key, p, book))

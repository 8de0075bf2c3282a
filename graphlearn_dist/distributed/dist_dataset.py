"""One partition of a data set, with the books that say where everything else is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Literal

import torch

from .. import _C
from ..core import available_cores, thread_pool
from ..data import shared_memory
from ..data.columns import EDGE_COLUMN, NODE_COLUMN, column_store
from ..data.dataset import Dataset
from ..data.feature import DeviceGroup, Feature
from ..data.graph import Graph
from ..data.handles import handles_of
from ..data.random_split import random_split as split_range
from ..data.schema import (
    EDGE_FEATURE,
    NODE_FEATURE,
    NODE_LABEL,
    NODE_TIME,
    EdgeDirection,
    bare,
    by_type,
    edge_ends,
    store_name,
)
from ..data.topology import Topology
from ..errors import InvalidArgumentError, PartitionFormatError, UnknownIdError
from ..partition import CachedRows, PartitionBook, RangePartitionBook, load_partition_layout
from ..partition.partition_book import check_partition_idx
from ..typing import EdgeType, NodeType
from .partitions.dataset_handle import (
    DatasetHandle,
    EdgeHandle,
    NodeHandle,
    book_handle,
    cache_handle,
    edge_book_handle,
    open_cache,
    open_parts,
    open_split,
    rows_handle,
    split_handles,
)
from .partitions.partition_parts import PartitionParts, parts_in, parts_of, topologies

_SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class MemoryPlace:
    """Which memory a partition is put in: ``Graph``'s mode and device, and what ``Feature`` is told of GPUs."""

    graph_mode: str = "ZERO_COPY"
    device: int | None = None
    with_gpu: bool = True
    device_groups: tuple[DeviceGroup, ...] = ()

    def __post_init__(self) -> None:
        usable = _C.cuda_device_count()
        for gpu in (device for group in self.device_groups for device in group.device_list):
            device = torch.device(gpu)
            if device.type != "cuda" or (device.index or 0) >= usable:
                raise InvalidArgumentError(f"device_group_list: expected GPUs, {usable} of them usable, got {device}")

    def graph(self, topology: Topology, row_book: PartitionBook) -> Graph:
        """Edges of the nodes that a book gives to its partition, in this place."""
        book = None if _is_trivial(row_book) else row_book
        return Graph(topology, self.graph_mode, self.device, row_book=book)

    def feature(self, rows: torch.Tensor, book: PartitionBook) -> Feature:
        """Rows of the ids that a book gives to its partition, in this place."""
        groups = list(self.device_groups) or None
        return Feature(rows, book.id2index, 0.0, groups, self.device, self.with_gpu, dtype=None)


class DistDataset(Dataset):
    """One partition: rows of the graph, features and labels by the partition books; ids are the data set's own.

    Build it with ``load`` from a partition directory, or with ``from_dataset`` from a data set held whole.

    Attributes:
        num_partitions: of the whole.
        partition_idx: this one.
        cached_graphs: the other partitions' graphs, without rows, where ``load(graph_caching=True)`` mapped them.
    """

    def __init__(self, edge_dir: EdgeDirection = "out") -> None:
        super().__init__(edge_dir=edge_dir)
        self.num_partitions = 0
        self.partition_idx = 0
        self._node_books: dict[Any, PartitionBook] = {}
        self._node_feature_books: dict[Any, PartitionBook] = {}
        self._edge_books: dict[Any, PartitionBook] = {}
        self._caches: dict[str, CachedRows] = {}
        self.cached_graphs: tuple[DistDataset, ...] = ()

    # --- building ----------------------------------------------------------------------------------------------

    def load(
        self,
        root_dir: str | Path,
        partition_idx: int,
        graph_mode: str = "ZERO_COPY",
        input_layout: Literal["COO", "CSR", "CSC"] = "COO",
        feature_with_gpu: bool = True,
        graph_caching: bool = False,
        device_group_list: list[DeviceGroup] | None = None,
        whole_node_label_file: str | Mapping[NodeType, str] | None = None,
        device: int | None = None,
        *,
        verify: bool | None = None,
    ) -> None:
        """Maps one partition of a partition directory; nothing is read into private memory but labels of a file.

        Args:
            root_dir: what a partitioner wrote.
            partition_idx: which partition.
            graph_mode: see ``Graph``.
            input_layout: not used: the directory says how its graph is stored.
            feature_with_gpu: use a GPU if there is one.
            graph_caching: map the graphs of all partitions, whose ``part<i>/graph`` must be on this machine: sampling
                then asks nobody. Features are still those of one partition.
            device_group_list: GPUs by group, which have to be usable. The rows of a partition stay in host memory
                all the same; to place some on GPUs make a ``Feature`` of them with a ``split_ratio``.
            whole_node_label_file: labels of all nodes, in place of those in the directory: a ``.npy`` or ``.pt`` file
                of a tensor ``[num_nodes, ...]``, or a dict of such by node type. The labels of this partition's
                nodes are kept.
            device: the GPU of this process.
            verify: compare checksums; None does so up to 1 GiB. Sizes are always checked.

        Raises:
            PartitionFormatError: the directory is foreign, truncated or damaged.
            InvalidArgumentError: there is no such partition or GPU, or a file of labels is not one.
        """
        layout = load_partition_layout(root_dir, verify=verify)
        check_partition_idx(partition_idx, layout.num_parts)
        arrays = layout.open_partition(partition_idx, verify=verify)
        self.edge_dir = layout.edge_dir  # type: ignore[assignment]  # checked on reading META.json
        parts = parts_in(layout, arrays, partition_idx).with_labels_of(whole_node_label_file)
        place = MemoryPlace(graph_mode, device, feature_with_gpu, tuple(device_group_list or ()))
        self._set(parts, place)
        others = set(range(layout.num_parts)) - {partition_idx} if graph_caching else set()
        self.cached_graphs = tuple(
            self._of_parts(
                parts.graphs_of(p, topologies(layout.open_graphs(p, verify=verify), self.edge_dir)),
                self.edge_dir,
                place,
            )
            for p in sorted(others)
        )
        schema = self.schema
        self._caches = {
            **{store_name(NODE_FEATURE, schema.node_type_index(key)): rows for key, rows in arrays.node_caches.items()},
            **{
                store_name(EDGE_FEATURE, schema.edge_types.index(key)): rows for key, rows in arrays.edge_caches.items()
            },
        }
        splits = {node_type: info.split for node_type, info in layout.nodes.items() if info.split}
        # The layout has looked at them: no node is in two.
        split = (bare({t: s[n] for t, s in splits.items() if n in s}) for n in _SPLITS)
        self.train_idx, self.val_idx, self.test_idx = split

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> DistDataset:
        """The one partition of a data set that is held whole: a server for data in memory."""
        whole = cls._of_parts(parts_of(dataset), dataset.edge_dir)
        whole.train_idx, whole.val_idx, whole.test_idx = dataset.train_idx, dataset.val_idx, dataset.test_idx
        return whole

    @classmethod
    def _of_parts(
        cls, parts: PartitionParts, edge_dir: EdgeDirection, place: MemoryPlace = MemoryPlace()
    ) -> DistDataset:
        dataset = cls(edge_dir)
        dataset._set(parts, place)
        return dataset

    def _set(self, parts: PartitionParts, place: MemoryPlace = MemoryPlace()) -> None:
        self.partition_idx = parts.partition_idx
        self.num_partitions = next(iter(parts.node_books.values())).num_partitions
        self._num_nodes = dict(parts.num_nodes)
        self._node_books, self._edge_books = dict(parts.node_books), dict(parts.edge_books)
        self._node_feature_books = dict(parts.node_feature_books)
        rows = {edge_type: edge_ends(edge_type, self.edge_dir)[0] for edge_type in parts.graphs}
        self.graph = bare(
            {key: place.graph(topology, self._node_books[rows[key]]) for key, topology in parts.graphs.items()}
        )
        self.node_features = bare(
            {key: place.feature(rows, self._node_feature_books[key]) for key, rows in parts.node_features.items()}
        )
        self.edge_features = bare(
            {key: place.feature(rows, self._edge_books[key]) for key, rows in parts.edge_features.items()}
        )
        self.node_labels = bare(dict(parts.node_labels))
        self._label_rows = {key: self._node_books[key].id2index for key in parts.node_labels}
        self.node_times, self.earliest_nodes = dict(parts.node_times), dict(parts.earliest_nodes)
        self.node_attrs = {key: dict(named) for key, named in parts.node_attrs.items()}
        self.edge_attrs = {key: dict(named) for key, named in parts.edge_attrs.items()}
        self.constants = {key: dict(named) for key, named in parts.constants.items()}

    def _rows_of(self, node_type: NodeType | None) -> Any:
        return self._node_books[node_type].id2index

    def _edge_rows_of(self, edge_type: EdgeType | None) -> Any:
        return self._edge_books[edge_type].id2index

    # --- reading -----------------------------------------------------------------------------------------------

    @property
    def node_pb(self) -> Any:
        """Who owns which node: a book, or a dict by node type."""
        return bare(self._node_books)

    @property
    def edge_pb(self) -> Any:
        """Who owns which edge's features: a book, or a dict by edge type."""
        return bare(self._edge_books)

    @property
    def node_feat_pb(self) -> Any:
        """Who owns which node's features: ``node_pb``, unless the partition directory says otherwise."""
        return bare(self._node_feature_books)

    @property
    def edge_feat_pb(self) -> Any:
        """Who owns which edge's features."""
        return self.edge_pb

    def row_books(self) -> tuple[PartitionBook, ...]:
        """Per edge type, the book of its rows (the nodes whose neighbors it holds)."""
        schema = self.schema
        return tuple(self._node_books[schema.node_types[seed_type]] for seed_type, _ in schema.edge_specs)

    def store_books(self) -> dict[str, PartitionBook]:
        """Per store of features, labels and times, the book of its rows."""
        schema, books = self.schema, {}
        for index, node_type in enumerate(schema.node_types):
            books[store_name(NODE_FEATURE, index)] = self._node_feature_books[node_type]
            books[store_name(NODE_LABEL, index)] = self._node_books[node_type]
            books[store_name(NODE_TIME, index)] = self._node_books[node_type]
        for index, edge_type in enumerate(schema.edge_types):
            books[store_name(EDGE_FEATURE, index)] = self._edge_books[edge_type]
        for key, columns in self.node_attrs.items():
            number = schema.node_type_index(key)
            books |= {column_store(NODE_COLUMN, number, name): self._node_books[key] for name in columns}
        for key, columns in self.edge_attrs.items():
            number = schema.edge_types.index(key)
            books |= {column_store(EDGE_COLUMN, number, name): self._edge_books[key] for name in columns}
        return books

    def edges(self, etype: EdgeType | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """This partition's edges of a type: ids, sources and targets, int64 ``[num_edges]`` each, global."""
        edge_ids, source, target = super().edges(etype)
        book = dict(zip(self.schema.edge_types, self.row_books(), strict=True))[etype]
        rows = book.local_ids(self.partition_idx)
        return (edge_ids, rows[source], target) if self.edge_dir == "out" else (edge_ids, source, rows[target])

    def row_caches(self) -> dict[str, CachedRows]:
        """Per feature store, the rows of other partitions that this one keeps copies of, where there are any."""
        return dict(self._caches)

    @property
    def holds_rows(self) -> bool:
        """Whether the rows of its partition are here; those of a ``ServedDataset`` are not."""
        return True

    @property
    def is_whole(self) -> bool:
        """Whether this one partition is the data set, with rows in the order of ids."""
        books = [*self._node_books.values(), *self._node_feature_books.values(), *self._edge_books.values()]
        return all(map(_is_trivial, books))

    # --- sharing -----------------------------------------------------------------------------------------------

    def share_ipc(self, *, with_splits: bool = True) -> DatasetHandle:
        """A handle with which another process of this host maps the same memory while this one lives.

        Args:
            with_splits: name the splits, too, and the constants; the handle is then good only while they stay the same.
        """
        with shared_memory.moving:
            self._move_to_shared_memory()
            for store, cached in self._caches.items():
                self._caches[store] = CachedRows(shared_memory.share(cached.ids), shared_memory.share(cached.feats))
            named = zip(_SPLITS, (self.train_idx, self.val_idx, self.test_idx), strict=True)
            return DatasetHandle(
                partition_idx=self.partition_idx,
                edge_dir=self.edge_dir,
                nodes=tuple(map(self._node_handle, self._node_books)),
                edges=tuple(map(self._edge_handle, by_type(self.graph))),
                caches=tuple(cache_handle(store, rows) for store, rows in self._caches.items()),
                cached_graphs=tuple(other.share_ipc(with_splits=False) for other in self.cached_graphs),
                splits=split_handles(dict(named)) if with_splits else (),
                constants=self.constants if with_splits else {},
            )

    def _node_handle(self, node_type: NodeType | None) -> NodeHandle:
        book, feature_book = self._node_books[node_type], self._node_feature_books[node_type]
        return NodeHandle(
            node_type,
            self._num_nodes[node_type],
            book_handle(book),
            None if feature_book is book else book_handle(feature_book),
            rows_handle(self.get_node_feature(node_type)),
            shared_memory.to_optional_handle(self.get_node_label(node_type)),
            shared_memory.to_optional_handle(self.node_times.get(node_type)),
            self.earliest_nodes.get(node_type),
            handles_of(self.node_attrs.get(node_type)),
        )

    def _edge_handle(self, edge_type: EdgeType | None) -> EdgeHandle:
        topology, features = by_type(self.graph)[edge_type].topo, self.get_edge_feature(edge_type)
        attrs = handles_of(self.edge_attrs.get(edge_type))
        book = edge_book_handle(self._edge_books[edge_type], with_ids=features is not None or bool(attrs))
        return EdgeHandle(edge_type, topology.to_handle(), book, rows_handle(features), attrs)

    @classmethod
    def from_ipc_handle(cls, ipc_handle: DatasetHandle) -> DistDataset:
        """Maps what ``share_ipc`` described."""
        dataset = cls._of_parts(open_parts(ipc_handle), ipc_handle.edge_dir)
        dataset._caches = {cache.store: open_cache(cache) for cache in ipc_handle.caches}
        dataset.cached_graphs = tuple(map(cls.from_ipc_handle, ipc_handle.cached_graphs))
        dataset.init_node_split(tuple(bare(open_split(ipc_handle.splits, name)) for name in _SPLITS))
        return dataset

    def validate(self) -> None:
        """Checks every index of the graph against the data set (reads all of it).

        Raises:
            PartitionFormatError: offsets do not ascend or a row is out of order.
            UnknownIdError: an index is outside the data set.
        """
        for edge_type, graph in by_type(self.graph).items():
            try:
                graph.graph_handler.validate(thread_pool(available_cores()))
            except UnknownIdError:
                raise
            except InvalidArgumentError as error:
                typed = "" if edge_type is None else f", edges {edge_type}"
                raise PartitionFormatError(f"partition {self.partition_idx}{typed}: {error}") from error


def _is_trivial(book: PartitionBook) -> bool:
    """Whether one partition owns all ids, with rows in the order of ids."""
    return book.num_partitions == 1 and isinstance(book, RangePartitionBook)


def rebuild_dist_dataset(ipc_handle: DatasetHandle) -> DistDataset:
    """The data set that ``reduce_dist_dataset`` described."""
    return DistDataset.from_ipc_handle(ipc_handle)


def reduce_dist_dataset(dataset: DistDataset) -> tuple[Any, ...]:
    """How a data set goes to another process through ``multiprocessing``: as a handle to the same memory.

    The process that sent it must still live when it is received. ``pickle`` and ``copy`` take the rows themselves.
    """
    return rebuild_dist_dataset, (dataset.share_ipc(),)


ForkingPickler.register(DistDataset, reduce_dist_dataset)


def random_split(
    indices: torch.Tensor, num_val: float | int, num_test: float | int, *, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Splits ids into (train, valid, test), each in the order of ``indices``; see ``data.random_split``."""
    train, val, test = (indices[part] for part in split_range(len(indices), num_val, num_test, seed=seed))
    return train, val, test


_SPLITS = ("train", "val", "test")

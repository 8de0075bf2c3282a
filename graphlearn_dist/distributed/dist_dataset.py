"""One partition of a data set, with the books that say where everything else is."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from .. import _C
from ..core import available_cores, thread_pool
from ..data import shared_memory
from ..data.dataset import Dataset
from ..data.feature import DeviceGroup, Feature
from ..data.graph import Graph, Layout, Topology
from ..data.random_split import random_split as split_range
from ..data.schema import EDGE_FEATURE, NODE_FEATURE, NODE_LABEL, NODE_TIME, EdgeDirection, by_type, store_name
from ..errors import InvalidArgumentError
from ..partition import CachedRows, GraphArrays, PartitionBook, RangePartitionBook, load_partition_layout
from ..partition.base import check_partition_idx
from ..typing import EdgeType, NodeType
from ..utils.tensor import load_tensor
from .dataset_handle import (
    CacheHandle,
    DatasetHandle,
    NodeHandle,
    book_handle,
    edge_handle,
    open_book,
    open_topology,
    rows_handle,
)


@dataclass(frozen=True)
class Placement:
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

    def feature(self, rows: torch.Tensor, id2index: Any) -> Feature:
        """Rows by id, in this place."""
        return Feature(rows, id2index, 0.0, list(self.device_groups) or None, self.device, self.with_gpu)


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
            device_group_list: GPUs by group.
            whole_node_label_file: labels of all nodes, in place of those in the directory: a ``.npy`` file of an array
                ``[num_nodes, ...]``, or a dict of such by node type. The labels of this partition's nodes are kept.
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
        place = Placement(graph_mode, device, feature_with_gpu, tuple(device_group_list or ()))
        node_books = {node_type: layout.node_book(node_type, partition_idx) for node_type in layout.nodes}
        labels = {**arrays.node_labels, **_own_labels(whole_node_label_file, node_books)}
        self._set(
            partition_idx,
            {node_type: info.count for node_type, info in layout.nodes.items()},
            node_books,
            {
                node_type: node_books[node_type]
                if info.feature_book is info.book
                else layout.node_feature_book(node_type, partition_idx)
                for node_type, info in layout.nodes.items()
            },
            {edge_type: layout.edge_feature_book(edge_type, partition_idx) for edge_type in layout.edges},
            _topologies(arrays.graphs, self.edge_dir),
            (arrays.node_feats, labels, arrays.edge_feats),
            place,
        )
        others = set(range(layout.num_parts)) - {partition_idx} if graph_caching else set()
        self.cached_graphs = tuple(
            self._graphs_only(p, _topologies(layout.open_graphs(p, verify=verify), self.edge_dir), place)
            for p in sorted(others)
        )
        earliest = {key: info.earliest for key, info in layout.nodes.items() if info.earliest is not None}
        self._set_node_times(arrays.node_times, earliest)
        schema = self.schema
        self._caches = {
            **{store_name(NODE_FEATURE, schema.node_type_index(key)): rows for key, rows in arrays.node_caches.items()},
            **{
                store_name(EDGE_FEATURE, schema.edge_types.index(key)): rows for key, rows in arrays.edge_caches.items()
            },
        }
        splits = {node_type: info.split for node_type, info in layout.nodes.items() if info.split}
        self.init_node_split(tuple(_unwrap({t: s[n] for t, s in splits.items() if n in s}) for n in _SPLITS))

    def _graphs_only(self, partition_idx: int, graphs: Mapping[Any, Topology], place: Placement) -> DistDataset:
        """Another partition of the same data set: its graph and no rows."""

        def seen_from(books: Mapping[Any, PartitionBook]) -> dict[Any, PartitionBook]:
            return {key: book.for_partition(partition_idx) for key, book in books.items()}

        other = DistDataset(self.edge_dir)
        other._set(
            partition_idx,
            self._num_nodes,
            seen_from(self._node_books),
            seen_from(self._node_feature_books),
            seen_from(self._edge_books),
            graphs,
            ({}, {}, {}),
            place,
        )
        return other

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> DistDataset:
        """The one partition of a data set that is held whole: a server for data in memory."""
        schema = dataset.schema
        whole = cls(edge_dir=dataset.edge_dir)
        counts = dict(zip(schema.node_types, schema.num_nodes, strict=True))
        graphs = {edge_type: graph.topo for edge_type, graph in by_type(dataset.graph).items()}
        node_books = {node_type: RangePartitionBook.near_equal(count, 1) for node_type, count in counts.items()}
        whole._set(
            0,
            counts,
            node_books,
            node_books,
            {
                edge_type: RangePartitionBook.near_equal(topology.edge_count, 1)
                for edge_type, topology in graphs.items()
            },
            graphs,
            (
                {key: _rows_by_id(feature) for key, feature in by_type(dataset.node_features).items()},
                {
                    key: _rows_by_id(Feature(labels, dataset._label_rows.get(key)))
                    for key, labels in by_type(dataset.node_labels).items()
                },
                {key: _rows_by_id(feature) for key, feature in by_type(dataset.edge_features).items()},
            ),
        )
        whole._set_node_times(dataset.node_times, dataset.earliest_nodes)
        whole.train_idx, whole.val_idx, whole.test_idx = dataset.train_idx, dataset.val_idx, dataset.test_idx
        return whole

    def _set(
        self,
        partition_idx: int,
        num_nodes: Mapping[Any, int],
        node_books: Mapping[Any, PartitionBook],
        node_feature_books: Mapping[Any, PartitionBook],
        edge_books: Mapping[Any, PartitionBook],
        graphs: Mapping[Any, Topology],
        rows: tuple[Mapping[Any, torch.Tensor], Mapping[Any, torch.Tensor], Mapping[Any, torch.Tensor]],
        place: Placement = Placement(),
    ) -> None:
        self.partition_idx = partition_idx
        self.num_partitions = next(iter(node_books.values())).num_partitions
        self._num_nodes = dict(num_nodes)
        self._node_books, self._edge_books = dict(node_books), dict(edge_books)
        self._node_feature_books = dict(node_feature_books)
        self.graph = _unwrap({key: Graph(topo, place.graph_mode, place.device) for key, topo in graphs.items()})
        node_features, node_labels, edge_features = rows
        self.node_features = _unwrap(
            {key: place.feature(tensor, node_feature_books[key].id2index) for key, tensor in node_features.items()}
        )
        self.edge_features = _unwrap(
            {key: place.feature(tensor, self._edge_books[key].id2index) for key, tensor in edge_features.items()}
        )
        self.node_labels = _unwrap(dict(node_labels))
        self._label_rows = {key: self._node_books[key].id2index for key in node_labels}

    def _set_node_times(self, node_times: Mapping[Any, torch.Tensor], earliest_nodes: Mapping[Any, int]) -> None:
        self.node_times, self.earliest_nodes = dict(node_times), dict(earliest_nodes)

    def _rows_of(self, node_type: NodeType | None) -> Any:
        return self._node_books[node_type].id2index

    # --- reading -----------------------------------------------------------------------------------------------

    @property
    def node_pb(self) -> Any:
        """Who owns which node: a book, or a dict by node type."""
        return _unwrap(self._node_books)

    @property
    def edge_pb(self) -> Any:
        """Who owns which edge's features: a book, or a dict by edge type."""
        return _unwrap(self._edge_books)

    @property
    def node_feat_pb(self) -> Any:
        """Who owns which node's features: ``node_pb``, unless the partition directory says otherwise."""
        return _unwrap(self._node_feature_books)

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
        return self.num_partitions == 1 and all(isinstance(book, RangePartitionBook) for book in books)

    # --- sharing -----------------------------------------------------------------------------------------------

    def share_ipc(self) -> DatasetHandle:
        """A handle with which another process of this host maps the same memory while this one lives."""
        with _sharing:  # several may ask at once: what is in private memory is moved once, not under another's handle
            return self._share()

    def _share(self) -> DatasetHandle:
        labels, node_features, edge_features = map(by_type, (self.node_labels, self.node_features, self.edge_features))
        self.node_labels = _unwrap({key: shared_memory.share(tensor) for key, tensor in labels.items()})
        labels, feature_books = by_type(self.node_labels), self._node_feature_books
        self.node_times = {key: shared_memory.share(times) for key, times in self.node_times.items()}
        nodes = tuple(
            NodeHandle(
                node_type,
                self._num_nodes[node_type],
                book_handle(book),
                None if feature_books[node_type] is book else book_handle(feature_books[node_type]),
                rows_handle(node_features.get(node_type)),
                shared_memory.to_handle(labels[node_type]) if node_type in labels else None,
                shared_memory.to_handle(self.node_times[node_type]) if node_type in self.node_times else None,
                self.earliest_nodes.get(node_type),
            )
            for node_type, book in self._node_books.items()
        )
        edges = tuple(
            edge_handle(edge_type, graph.topo, self._edge_books[edge_type], edge_features.get(edge_type))
            for edge_type, graph in by_type(self.graph).items()
        )
        for store, rows in self._caches.items():
            self._caches[store] = CachedRows(shared_memory.share(rows.ids), shared_memory.share(rows.feats))
        caches = tuple(
            CacheHandle(store, shared_memory.to_handle(rows.ids), shared_memory.to_handle(rows.feats))
            for store, rows in self._caches.items()
        )
        cached_graphs = tuple(other._share() for other in self.cached_graphs)
        return DatasetHandle(self.partition_idx, self.edge_dir, nodes, edges, caches, cached_graphs)

    @classmethod
    def from_ipc_handle(cls, ipc_handle: DatasetHandle) -> DistDataset:
        """Maps what ``share_ipc`` described. Splits stay with the sharer."""
        dataset = cls(edge_dir=ipc_handle.edge_dir)  # type: ignore[arg-type]
        index = ipc_handle.partition_idx
        open_tensor = shared_memory.from_handle
        nodes, edges = ipc_handle.nodes, ipc_handle.edges
        node_books = {node.node_type: open_book(node.book, index) for node in nodes}
        own_feature_books = {
            node.node_type: open_book(node.feature_book, index) for node in nodes if node.feature_book is not None
        }
        dataset._set(
            index,
            {node.node_type: node.count for node in nodes},
            node_books,
            {**node_books, **own_feature_books},
            {edge.edge_type: open_book(edge.feature_book, index) for edge in edges},
            {edge.edge_type: open_topology(edge, _LAYOUTS[dataset.edge_dir]) for edge in edges},
            (
                {node.node_type: open_tensor(node.features) for node in nodes if node.features is not None},
                {node.node_type: open_tensor(node.labels) for node in nodes if node.labels is not None},
                {edge.edge_type: open_tensor(edge.features) for edge in edges if edge.features is not None},
            ),
        )
        dataset._set_node_times(
            {node.node_type: open_tensor(node.times) for node in nodes if node.times is not None},
            {node.node_type: node.earliest for node in nodes if node.earliest is not None},
        )
        dataset._caches = {
            cache.store: CachedRows(open_tensor(cache.ids), open_tensor(cache.rows)) for cache in ipc_handle.caches
        }
        dataset.cached_graphs = tuple(map(cls.from_ipc_handle, ipc_handle.cached_graphs))
        return dataset

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_dist_dataset(self)

    def validate(self) -> None:
        """Checks every index of the graph against the data set (reads all of it).

        Raises:
            InvalidArgumentError: offsets do not ascend or a row is out of order.
            UnknownIdError: an index is outside the data set.
        """
        for graph in by_type(self.graph).values():
            graph.graph_handler.validate(thread_pool(available_cores()))


def reduce_dist_dataset(dataset: DistDataset) -> tuple[Any, ...]:
    """How a data set is pickled, for a child process say: as a handle to the same memory, and its splits.

    The process that pickled it must still live when it is unpickled, on the same host.
    """
    splits = (dataset.train_idx, dataset.val_idx, dataset.test_idx)
    return rebuild_dist_dataset, (dataset.share_ipc(), splits)


def rebuild_dist_dataset(ipc_handle: DatasetHandle, splits: tuple[Any, Any, Any] = (None, None, None)) -> DistDataset:
    """The data set that ``share_ipc`` or ``reduce_dist_dataset`` described; nothing is copied but the splits."""
    dataset = DistDataset.from_ipc_handle(ipc_handle)
    dataset.train_idx, dataset.val_idx, dataset.test_idx = splits
    return dataset


def random_split(
    indices: torch.Tensor, num_val: float | int, num_test: float | int, *, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Splits ids into (train, valid, test), each in the order of ``indices``; see ``data.random_split``."""
    train, val, test = (indices[part] for part in split_range(len(indices), num_val, num_test, seed=seed))
    return train, val, test


_SPLITS = ("train", "val", "test")
_sharing = threading.Lock()
_LAYOUTS: dict[str, Layout] = {"out": "CSR", "in": "CSC"}


def _unwrap(values: dict[Any, Any]) -> Any:
    """The bare object of a homogeneous data set, the dict of a typed one, None where there is nothing."""
    return values.get(None, values) if values else None


def _topologies(graphs: Mapping[Any, GraphArrays], edge_dir: EdgeDirection) -> dict[Any, Topology]:
    return {
        edge_type: Topology.from_arrays(
            graph.indptr,
            graph.indices,
            graph.edge_ids,
            layout=_LAYOUTS[edge_dir],
            num_cols=graph.num_cols,
            edge_weights=graph.weights,
            edge_times=graph.times,
        )
        for edge_type, graph in graphs.items()
    }


def _own_labels(files: Any, books: Mapping[Any, PartitionBook]) -> dict[Any, torch.Tensor]:
    """From files of all nodes' labels, by node type, those of a partition's own nodes, in the order of its rows."""
    own = {}
    for node_type, path in by_type(files).items():
        if node_type not in books:
            raise InvalidArgumentError(f"whole_node_label_file: unknown node type {node_type!r}; got {list(books)}")
        labels, book = load_tensor(path, "whole_node_label_file"), books[node_type]
        if labels.dim() < 1 or len(labels) != book.num_ids:
            raise InvalidArgumentError(
                f"whole_node_label_file: expected labels [{book.num_ids}, ...], got {list(labels.shape)} in {path}"
            )
        own[node_type] = labels[book.local_ids()]
    return own


def _rows_by_id(feature: Feature) -> torch.Tensor:
    """All rows in the order of ids, as lookups give them: the tensor itself, or a copy where ``id2index`` says that
    rows lie otherwise or where lookups cast."""
    if feature.id2index is None and feature.dtype == feature.feature_tensor.dtype:
        return feature.feature_tensor
    return feature[torch.arange(feature.size(0) if feature.id2index is None else len(feature.id2index))]

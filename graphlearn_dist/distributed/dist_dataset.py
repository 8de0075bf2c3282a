"""One partition of a data set, with the books that say where everything else is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Literal

import torch

from ..core import available_cores, thread_pool
from ..data import shared_memory
from ..data.columns import EDGE_COLUMN, NODE_COLUMN, column_store
from ..data.dataset import Dataset
from ..data.device.device_group import DeviceGroup, gpus_by_group, groups_of_gpus, usable_groups
from ..data.feature import Feature
from ..data.graph import Graph
from ..data.handles import handles_of, order_handles
from ..data.random_split import random_split as split_range
from ..data.schema import (
    EDGE_FEATURE,
    NODE_FEATURE,
    NODE_LABEL,
    NODE_TIME,
    EdgeDirection,
    GraphSchema,
    bare,
    by_type,
    edge_ends,
    store_name,
)
from ..data.topology import Topology
from ..errors import InvalidArgumentError, PartitionFormatError, UnknownIdError
from ..partition import CachedRows, PartitionBook, load_partition_layout
from ..partition.edge_book import OwnedEdgesBook
from ..partition.partition_book import check_partition_idx
from ..sampler.device.device_graph import device_of
from ..typing import EdgeType, NodeType
from ..utils.device import gpu_number
from .partitions.dataset_handle import (
    DatasetHandle,
    EdgeHandle,
    NodeHandle,
    book_handle,
    cache_handle,
    edge_book_handle,
    open_copies,
    open_parts,
    open_split,
    out_dtype_name,
    rows_handle,
    split_handles,
)
from .partitions.held_partition import GivenPartition, HeldPartition, PartitionHolder, is_trivial
from .partitions.partition_parts import PartitionParts, parts_in, parts_of, parts_of_books, topologies

_SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class MemoryPlace:
    """Which memory a partition is put in: ``Graph``'s mode and device, and what ``Feature`` is told of GPUs."""

    graph_mode: str = "ZERO_COPY"
    device: torch.device | str | int | None = None
    with_gpu: bool = True
    device_groups: tuple[DeviceGroup, ...] = ()

    def __post_init__(self) -> None:
        usable_groups(self.device_groups)

    def graph(self, topology: Topology, row_book: PartitionBook) -> Graph:
        """Edges of the nodes that a book gives to its partition, in this place."""
        book = None if is_trivial(row_book) else row_book
        groups = self.device_groups if self.graph_mode == "CUDA" and self.device is not None else ()
        return Graph(topology, self.graph_mode, self.device, row_book=book, device_group_list=groups)

    def feature(self, rows: torch.Tensor, book: PartitionBook, out_dtype: torch.dtype | None) -> Feature:
        """Rows of the ids that a book gives to its partition, in this place."""
        groups = list(self.device_groups) or None
        # A GPU that gathers reads no object that maps ids to rows.
        id2index = None if self.with_gpu and self.device is not None and is_trivial(book) else book.id2index
        return Feature(rows, id2index, 0.0, groups, self.device, self.with_gpu, dtype=None, out_dtype=out_dtype)

    @classmethod
    def of_graphs(cls, graphs: Mapping[Any, Graph]) -> MemoryPlace:
        """Where graphs lie, which are all in one place; features in host memory alone."""
        graph = next(iter(graphs.values()), None)
        if graph is None:
            return cls(with_gpu=False)
        return cls(graph.mode, graph.device, with_gpu=False, device_groups=graph.device_group_list)


class DistDataset(Dataset):
    """One partition: rows of the graph, features and labels by the partition books; ids are the data set's own.

    Build it with ``load`` from a partition directory, with ``from_dataset`` from a data set held whole, or put it
    together here: a partition's graph with a row for each id (those of its own nodes are read), features with
    ``id2index``, and books, or the owner of each id as tensors; all bare, or dicts by type for a typed graph.
    ``init_graph`` and its like do the same one by one. The batches are those of a directory with the same partitions.

    Args:
        num_partitions: of the whole.
        partition_idx: this one.
        graph_partition: its edges: a ``Graph``, or a dict by edge type.
        node_feature_partition: its rows: a ``Feature``, or a dict by node type.
        edge_feature_partition: its rows: a ``Feature``, or a dict by edge type.
        whole_node_labels: labels of all nodes, ``[num_nodes, ...]`` (or a dict by node type).
        node_pb: who owns which node; a book or tensor, or a dict by node type. Every type that has edges needs one.
        edge_pb: who owns which edge, as to its features; likewise by edge type. Only edge features need it.
        node_feat_pb: who has which node's features, where that is not ``node_pb``. One that differs only in ids that
            it gives to this partition is taken for this partition's own view (``cat_feature_cache`` makes those): it
            keeps copies of these rows.
        edge_feat_pb: the same of edges.
        edge_dir: see ``Dataset``.
        node_split: (train, valid, test) ids.
        graph_caching: ``graph_partition`` is the whole graph: sampling asks nobody.

    Attributes:
        num_partitions: of the whole.
        partition_idx: this one.
        graph_caching: whether the graph of all partitions is at hand.
        cached_graphs: the other partitions' graphs, without rows, where it is.
        node_labels: of all nodes, by id, where labels of all were given; else of this partition's, in its order.
    """

    def __init__(
        self,
        num_partitions: int = 1,
        partition_idx: int = 0,
        graph_partition: Any = None,
        node_feature_partition: Any = None,
        edge_feature_partition: Any = None,
        whole_node_labels: Any = None,
        node_pb: Any = None,
        edge_pb: Any = None,
        node_feat_pb: Any = None,
        edge_feat_pb: Any = None,
        edge_dir: EdgeDirection = "out",
        node_split: Any = None,
        *,
        graph_caching: bool = False,
    ) -> None:
        super().__init__(
            graph_partition,
            node_feature_partition,
            edge_feature_partition,
            whole_node_labels,
            edge_dir,
            node_split,
        )
        self.num_partitions = num_partitions
        self.partition_idx = check_partition_idx(partition_idx, num_partitions)
        self.graph_caching = graph_caching
        self.node_pb, self.edge_pb = node_pb, edge_pb
        self._node_feat_pb, self._edge_feat_pb = node_feat_pb, edge_feat_pb
        self._books_are_shared = False
        self._caches: dict[str, CachedRows] = {}
        self._cached_graphs: tuple[DistDataset, ...] = ()
        self._cached_from: Any = None  # of what they were made, if not of a directory
        self._holder = PartitionHolder()
        self._held()

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
        device: torch.device | str | int | None = None,
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
            device_group_list: GPUs by group, which have to be usable. Edges of mode ``"CUDA"`` lie on those of
                ``device``'s group, see ``Graph``. The rows of a partition stay in host memory all the same; to place
                some on GPUs make a ``Feature`` of them with a ``split_ratio``.
            whole_node_label_file: labels of all nodes, in place of those in the directory: a ``.npy`` or ``.pt`` file
                of a tensor ``[num_nodes, ...]``, or a dict of such by node type. ``node_labels`` then has those of all
                nodes, by id.
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
        place = MemoryPlace(graph_mode, device, feature_with_gpu, usable_groups(device_group_list))
        self._set(parts, place)
        self.graph_caching = graph_caching
        others = set(range(layout.num_parts)) - {partition_idx} if graph_caching else set()
        self._cached_graphs = tuple(
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
        """The one partition of a data set that is held whole: a server for data in memory.

        Graphs stay on the GPU that they were given, and features that a GPU gathers stay where they are, unless they
        have an ``id2index``: the rows of those are brought into the order of ids, in host memory.

        Raises:
            InvalidArgumentError: graphs are on several devices, or only some are on one.
        """
        device_of(dataset)
        whole = cls._of_parts(parts_of(dataset), dataset.edge_dir, MemoryPlace.of_graphs(dataset.graphs()))
        for name in ("node_features", "edge_features"):
            given, made = by_type(getattr(dataset, name)), by_type(getattr(whole, name))
            on_gpu = {key: one for key, one in given.items() if one.gathers_on_gpu and one.id2index is None}
            setattr(whole, name, bare({**made, **on_gpu}))
        whole.train_idx, whole.val_idx, whole.test_idx = dataset.train_idx, dataset.val_idx, dataset.test_idx
        return whole

    @classmethod
    def _of_parts(
        cls, parts: PartitionParts, edge_dir: EdgeDirection, place: MemoryPlace = MemoryPlace()
    ) -> DistDataset:
        dataset = cls(edge_dir=edge_dir)
        dataset._set(parts, place)
        return dataset

    def _set(self, parts: PartitionParts, place: MemoryPlace = MemoryPlace()) -> None:
        self.partition_idx = parts.partition_idx
        self.num_partitions = next(iter(parts.node_books.values())).num_partitions
        node_books, edge_books = dict(parts.node_books), dict(parts.edge_books)
        feature_books = dict(parts.node_feature_books)
        rows = {edge_type: edge_ends(edge_type, self.edge_dir)[0] for edge_type in parts.graphs}
        self.graph = bare({key: place.graph(topology, node_books[rows[key]]) for key, topology in parts.graphs.items()})
        self.node_features = bare(
            {
                key: place.feature(rows, feature_books[key], parts.node_out_dtypes.get(key))
                for key, rows in parts.node_features.items()
            }
        )
        self.edge_features = bare(
            {
                key: place.feature(rows, edge_books[key], parts.edge_out_dtypes.get(key))
                for key, rows in parts.edge_features.items()
            }
        )
        self.node_labels = bare({**parts.node_labels, **parts.whole_labels})
        self._label_rows = {key: node_books[key].id2index for key in parts.node_labels}
        self.node_times, self.earliest_nodes = dict(parts.node_times), dict(parts.earliest_nodes)
        self.node_attrs = {key: dict(named) for key, named in parts.node_attrs.items()}
        self.edge_attrs = {key: dict(named) for key, named in parts.edge_attrs.items()}
        self.constants = {key: dict(named) for key, named in parts.constants.items()}
        self.table_columns = {key: dict(named) for key, named in parts.table_columns.items()}
        self.node_orders = dict(parts.node_orders)
        self.node_pb, self.edge_pb = bare(node_books), bare(edge_books)
        is_own = any(feature_books[key] is not book for key, book in node_books.items())
        self._node_feat_pb, self._edge_feat_pb = bare(feature_books) if is_own else None, None
        self._books_are_shared = True

    def init_graph(self, *args: Any, node_times: Any = None, **kwargs: Any) -> None:
        """See ``Dataset.init_graph``; ``node_times`` are those of all nodes, ``node_pb`` comes first then."""
        super().init_graph(*args, node_times=node_times, **kwargs)
        books = self.node_books() if self.node_times else {}  # a graph alone may come before its books
        for key, times in self.node_times.items():
            if key not in books:
                raise InvalidArgumentError(f"node_times: expected node_pb to be set first, for {key!r}")
            self.node_times[key] = times[books[key].local_ids()]

    def _cover(self, num_rows: Mapping[Any, int]) -> None:
        """The books say how many nodes there are."""

    def _given(self) -> GivenPartition:
        return GivenPartition(
            self.num_partitions,
            self.partition_idx,
            self.edge_dir,
            self.graph_caching,
            self.graph,
            self.node_features,
            self.edge_features,
            self.node_labels,
            self._label_rows,
            self.node_pb,
            self.edge_pb,
            self._node_feat_pb,
            self._edge_feat_pb,
            self._books_are_shared,
        )

    def _held(self) -> HeldPartition:
        """What is here, in the order of the books; made when first needed after something was given."""
        held = self._holder.current(self._given())
        if held is None:
            with shared_memory.moving:  # what was given is read here: another thread may have moved it meanwhile
                held = self._holder.hold(self._given())
                self._num_nodes = held.num_nodes()
        return held

    def _rows_of(self, node_type: NodeType | None) -> Any:
        return self.node_books()[node_type].id2index

    def _edge_rows_of(self, edge_type: EdgeType | None) -> Any:
        return self.edge_books()[edge_type].id2index

    # --- reading -----------------------------------------------------------------------------------------------

    @property
    def schema(self) -> GraphSchema:
        """Types and counts of the whole data set."""
        self._held()
        return super().schema

    @property
    def node_feat_pb(self) -> Any:
        """Who has which node's features: ``node_pb``, unless something else was given."""
        return self.node_pb if self._node_feat_pb is None else self._node_feat_pb

    @property
    def edge_feat_pb(self) -> Any:
        """Who has which edge's features: ``edge_pb``, unless something else was given."""
        return self.edge_pb if self._edge_feat_pb is None else self._edge_feat_pb

    def node_books(self) -> dict[Any, PartitionBook]:
        """Who owns which node, by node type."""
        return self._held().node_books

    def node_feature_books(self) -> dict[Any, PartitionBook]:
        """Who has which node's features, by node type; the same in all partitions."""
        return self._held().node_feature_books

    def edge_books(self) -> dict[Any, PartitionBook]:
        """Who has which edge's features, by edge type; the same in all partitions."""
        return self._held().edge_books

    def graphs(self) -> dict[EdgeType | None, Graph]:
        """The rows of this partition's nodes, by edge type, in the order of its book."""
        return self._held().graphs

    @property
    def cached_graphs(self) -> tuple[DistDataset, ...]:
        """The other partitions' graphs, without rows, where they are at hand."""
        cached = self._held().cached_graphs
        if cached and self._cached_from is not cached:
            parts, self._cached_from = parts_of_books(self._held()), cached
            self._cached_graphs = tuple(
                self._of_parts(parts.graphs_of(p, graphs), self.edge_dir) for p, graphs in sorted(cached.items())
            )
        return self._cached_graphs

    def stores(self) -> dict[str, Feature]:
        """Every store by its name, with its rows in the order of its book (see ``store_books``)."""
        schema, held, found = self.schema, self._held(), super().stores()
        for key, feature in held.node_features.items():
            found[store_name(NODE_FEATURE, schema.node_type_index(key))] = feature
        for key, feature in held.edge_features.items():
            found[store_name(EDGE_FEATURE, schema.edge_types.index(key))] = feature
        for key, labels in held.node_labels.items():
            rows = held.label_books[key].id2index
            found[store_name(NODE_LABEL, schema.node_type_index(key))] = Feature(labels, rows, dtype=None)
        return found

    def features_in_use(self) -> list[Feature]:
        """Node and edge features of this partition, in the order of their books."""
        held = self._held()
        return [*held.node_features.values(), *held.edge_features.values()]

    def labels_of(self, ids: torch.Tensor, node_type: NodeType | None = None) -> torch.Tensor:
        """Labels of nodes of this partition, or of any where it has those of all."""
        return self.stores()[store_name(NODE_LABEL, self.schema.node_type_index(node_type))][ids]

    def row_books(self) -> tuple[PartitionBook, ...]:
        """Per edge type, the book of its rows (the nodes whose neighbors it holds)."""
        schema, books = self.schema, self.node_books()
        return tuple(books[schema.node_types[seed_type]] for seed_type, _ in schema.edge_specs)

    def store_books(self) -> dict[str, PartitionBook]:
        """Per store of features, labels and times, the book of its rows."""
        schema, held, books = self.schema, self._held(), {}
        for index, node_type in enumerate(schema.node_types):
            book = held.node_books[node_type]
            books[store_name(NODE_FEATURE, index)] = held.node_feature_books[node_type]
            books[store_name(NODE_LABEL, index)] = held.label_books.get(node_type, book)
            books[store_name(NODE_TIME, index)] = book
        for index, edge_type in enumerate(schema.edge_types):
            books[store_name(EDGE_FEATURE, index)] = held.edge_books[edge_type]
        for key, columns in self.node_attrs.items():
            number = schema.node_type_index(key)
            books |= {column_store(NODE_COLUMN, number, name): held.node_books[key] for name in columns}
        for key, columns in self.edge_attrs.items():
            number = schema.edge_types.index(key)
            books |= {column_store(EDGE_COLUMN, number, name): held.edge_books[key] for name in columns}
        return books

    def edges(self, etype: EdgeType | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """This partition's edges of a type: ids, sources and targets, int64 ``[num_edges]`` each, global."""
        edge_ids, source, target = super().edges(etype)
        book = dict(zip(self.schema.edge_types, self.row_books(), strict=True))[etype]
        rows = book.local_ids(self.partition_idx)
        return (edge_ids, rows[source], target) if self.edge_dir == "out" else (edge_ids, source, rows[target])

    def num_edge_ids(self, etype: EdgeType | None = None) -> int | None:
        """Ids of a type's edges in all partitions are below this; 0 where there is no such type.

        None where partitions that were put together in memory were given no book of their edges.
        """
        book = self.edge_books().get(etype)
        if isinstance(book, OwnedEdgesBook) and not book.knows_all:
            return None
        return 0 if book is None else book.num_ids

    def row_caches(self) -> dict[str, CachedRows]:
        """Per feature store, the rows of other partitions that this one keeps copies of, where there are any."""
        schema, held = self.schema, self._held()
        return {
            **self._caches,
            **{store_name(NODE_FEATURE, schema.node_type_index(key)): rows for key, rows in held.node_caches.items()},
            **{store_name(EDGE_FEATURE, schema.edge_types.index(key)): rows for key, rows in held.edge_caches.items()},
        }

    @property
    def holds_rows(self) -> bool:
        """Whether the rows of its partition are here; those of a ``ServedDataset`` are not."""
        return True

    @property
    def is_whole(self) -> bool:
        """Whether this one partition is the data set, with rows in the order of ids."""
        books = (self.node_books(), self.node_feature_books(), self.edge_books())
        return all(is_trivial(book) for of_kind in books for book in of_kind.values())

    # --- sharing -----------------------------------------------------------------------------------------------

    def share_ipc(self, *, with_splits: bool = True) -> DatasetHandle:
        """A handle with which another process of this host maps the same memory while this one lives.

        Args:
            with_splits: name the splits, too, the constants and the orders; the handle is then good only while they
                stay the same.
        """
        return self.to_handle(with_splits=with_splits)

    def to_handle(self, *, with_splits: bool) -> DatasetHandle:
        """What ``share_ipc`` gives, which classes of a program's own may have of another kind: workers and servers of
        this package ask for this one."""
        with shared_memory.moving:
            self._move_to_shared_memory()
            held = self._held()
            named = zip(_SPLITS, (self.train_idx, self.val_idx, self.test_idx), strict=True)
            place = MemoryPlace.of_graphs(held.graphs if self.is_whole else {})
            return DatasetHandle(
                partition_idx=self.partition_idx,
                edge_dir=self.edge_dir,
                nodes=tuple(self._node_handle(held, key) for key in held.node_books),
                edges=tuple(self._edge_handle(held, key) for key in held.graphs),
                caches=tuple(cache_handle(store, rows) for store, rows in self._shared_caches(held).items()),
                cached_graphs=tuple(other.to_handle(with_splits=False) for other in self.cached_graphs),
                splits=split_handles(dict(named)) if with_splits else (),
                constants=self.constants if with_splits else {},
                table_columns=self.table_columns if with_splits else {},
                node_orders=order_handles(self.node_orders) if with_splits else {},
                graph_mode=place.graph_mode,
                device=gpu_number(place.device, must_be_there=False),
                device_groups=tuple(gpus_by_group(place.device_groups)),
            )

    def _move_to_shared_memory(self) -> None:
        """What was given in another order than the books' moves where it lies, so that views of it are views still."""
        super()._move_to_shared_memory()
        held = self._held()
        for given, of_books in (
            (self.graph, held.graphs),
            (self.node_features, held.node_features),
            (self.edge_features, held.edge_features),
        ):
            for key, one in by_type(given).items():
                if of_books[key] is not one and _moved(one):
                    self._holder.forget(one)
        for key, labels in held.node_labels.items():
            shared = shared_memory.share(labels)
            if shared is not labels:  # they were put into the order of the book
                held.node_labels[key] = shared
                self._holder.keep_labels(key, shared)

    def _shared_caches(self, held: HeldPartition) -> dict[str, CachedRows]:
        """``row_caches`` in memory that other processes can map."""
        for store, cached in self._caches.items():
            self._caches[store] = _shared(cached)
        for name, caches in (("node_features", held.node_caches), ("edge_features", held.edge_caches)):
            for key, cached in caches.items():
                caches[key] = _shared(cached)
                self._holder.keep_copies(name, key, caches[key])  # they outlive what is held now, as their handles do
        return self.row_caches()

    def _node_handle(self, held: HeldPartition, node_type: NodeType | None) -> NodeHandle:
        book, feature_book = held.node_books[node_type], held.node_feature_books[node_type]
        return NodeHandle(
            node_type,
            self._num_nodes[node_type],
            book_handle(book),
            None if feature_book is book else book_handle(feature_book),
            rows_handle(held.node_features.get(node_type)),
            shared_memory.to_optional_handle(held.node_labels.get(node_type)),
            shared_memory.to_optional_handle(self.node_times.get(node_type)),
            self.earliest_nodes.get(node_type),
            handles_of(self.node_attrs.get(node_type)),
            has_all_labels=held.label_books.get(node_type, book) is not book,
            out_dtype=out_dtype_name(held.node_features.get(node_type)),
        )

    def _edge_handle(self, held: HeldPartition, edge_type: EdgeType | None) -> EdgeHandle:
        topology, features = held.graphs[edge_type].topo, held.edge_features.get(edge_type)
        attrs = handles_of(self.edge_attrs.get(edge_type))
        book = edge_book_handle(held.edge_books[edge_type], with_ids=features is not None or bool(attrs))
        graph, rows = topology.to_handle(), rows_handle(features)
        return EdgeHandle(edge_type, graph, book, rows, attrs, out_dtype=out_dtype_name(features))

    def __getstate__(self) -> dict[str, Any]:
        """Without what is made of the rest; partitions held in another order are made again."""
        return {**self.__dict__, "_holder": PartitionHolder()}

    @classmethod
    def from_ipc_handle(cls, ipc_handle: DatasetHandle) -> DistDataset:
        """Maps what ``share_ipc`` described."""
        groups = groups_of_gpus(ipc_handle.device_groups)
        place = MemoryPlace(ipc_handle.graph_mode, ipc_handle.device, with_gpu=False, device_groups=groups)
        dataset = cls._of_parts(open_parts(ipc_handle), ipc_handle.edge_dir, place)
        dataset._caches = open_copies(ipc_handle.caches)
        dataset._cached_graphs = tuple(map(cls.from_ipc_handle, ipc_handle.cached_graphs))
        dataset.graph_caching = bool(dataset._cached_graphs)
        dataset.init_node_split(tuple(bare(open_split(ipc_handle.splits, name)) for name in _SPLITS))
        return dataset

    def validate(self) -> None:
        """Checks every index of the graph against the data set (reads all of it).

        Raises:
            PartitionFormatError: offsets do not ascend or a row is out of order.
            UnknownIdError: an index is outside the data set.
        """
        for edge_type, graph in self.graphs().items():
            try:
                graph.graph_handler.validate(thread_pool(available_cores()))
            except UnknownIdError:
                raise
            except InvalidArgumentError as error:
                typed = "" if edge_type is None else f", edges {edge_type}"
                raise PartitionFormatError(f"partition {self.partition_idx}{typed}: {error}") from error


def _shared(cached: CachedRows) -> CachedRows:
    return CachedRows(shared_memory.share(cached.ids), shared_memory.share(cached.feats))


def _moved(given: Graph | Feature) -> bool:
    """Moves what is not in shared memory yet; whether anything was."""
    if isinstance(given, Feature):
        before = given.feature_tensor
        return given.share_memory_().feature_tensor is not before
    topology = given.topo
    indptr, indices = topology.indptr, topology.indices
    topology.share_memory_()
    return topology.indptr is not indptr or topology.indices is not indices


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

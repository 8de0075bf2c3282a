"""Dataset: graph, features, labels and splits of one machine, homogeneous or typed.

Inside, everything is a dict by type, and a homogeneous data set has the one unnamed type ``None``. Only the public
attributes and getters, which take and give bare objects for homogeneous data, ask which of the two it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from ..core import check_index_tensor
from ..errors import InvalidArgumentError, UnknownIdError
from ..typing import EdgeType, NodeType, Split
from ..utils.shown import shown
from ..utils.tensor import convert_to_tensor
from ..utils.units import parse_size
from ..utils.values import check_disjoint, check_distinct, check_rows, check_weights, label_of
from . import shared_memory
from .columns import NamedColumns, column_stores, handles_by_type
from .device.device_group import DeviceGroup, usable_gpu
from .disk_tier import FeatureMemory
from .feature import Feature, divide_memory
from .graph import Graph
from .handles import WholeDatasetHandle, handles_of, open_orders, order_handles, share_tables, tensors_of
from .random_split import random_split
from .reorder import resolve_hotness, sort_rows
from .schema import (
    EDGE_FEATURE,
    NODE_FEATURE,
    NODE_LABEL,
    NODE_TIME,
    EdgeDirection,
    GraphSchema,
    bare,
    by_type,
    collect_node_types,
    earliest,
    edge_ends,
    store_name,
)
from .topology import Topology, count_ends, to_coo
from .zone_order import ZoneOrder, check_order


def _check_types(name: str, values: Mapping[Any, Any], known: Mapping[Any, Any], what: str) -> None:
    for key in values:
        if key not in known:
            raise InvalidArgumentError(f"{name}: unknown {what} {key!r}; expected some of {list(known)}")


def _per_type(name: str, values: Any, edges: Mapping[Any, Any]) -> dict[Any, Any]:
    """What edges have beside their ends, as tensors by type."""
    given = by_type(values)
    _check_types(name, given, edges, "edge type")
    return {key: convert_to_tensor(value, name=label_of(name, key)) for key, value in given.items()}


def _check_numbers(name: str, features: Any, allow_nonfinite: bool) -> None:
    for key, rows in by_type(features).items():
        check_rows(label_of(name, key), rows, allow_nonfinite)


class Dataset(NamedColumns):
    """Graph, features, labels and splits.

    Args:
        graph: a ``Graph``, or a dict by edge type.
        node_features: a ``Feature``, or a dict by node type.
        edge_features: a ``Feature``, or a dict by edge type.
        node_labels: a tensor ``[num_nodes, ...]``, or a dict by node type.
        edge_dir: ``"out"`` samples out-neighbors (rows are sources), ``"in"`` in-neighbors (rows are targets).
        node_split: (train, valid, test) ids.

    Attributes:
        node_times: by node type, int64 ``[num_nodes]``, as given to ``init_graph``; in a partition, of its own nodes.
        earliest_nodes: by node type that has times, the node of the least time; of several, the one of the least id.
        node_orders: by node type, the order of its nodes, as given to ``init_order``.
        feature_memory: what ``limit_feature_memory`` was given, else None.
    """

    # What ``init_graph`` and ``init_node_features`` make.
    _topology_class: type[Topology] = Topology
    _graph_class: type[Graph] = Graph
    _feature_class: type[Feature] = Feature

    def __init__(
        self,
        graph: Any = None,
        node_features: Any = None,
        edge_features: Any = None,
        node_labels: Any = None,
        edge_dir: EdgeDirection = "out",
        node_split: Any = None,
    ) -> None:
        if edge_dir not in ("in", "out"):
            raise InvalidArgumentError(f"edge_dir: expected 'in' or 'out', got {shown(edge_dir)}")
        self.graph = graph
        self.node_features = node_features
        self.edge_features = edge_features
        self.node_labels = convert_to_tensor(node_labels, name="node_labels")
        self.edge_dir: EdgeDirection = edge_dir
        super().__init__()
        self.node_times: dict[Any, torch.Tensor] = {}
        self.earliest_nodes: dict[Any, int] = {}
        self.node_orders: dict[Any, ZoneOrder] = {}
        self._num_nodes: dict[Any, int] = {}
        self._label_rows: dict[Any, Any] = {}
        self.feature_memory: FeatureMemory | None = None
        self.train_idx: Any = None
        self.val_idx: Any = None
        self.test_idx: Any = None
        self.init_node_split(node_split)

    # --- building ----------------------------------------------------------------------------------------------

    def init_graph(
        self,
        edge_index: Any = None,
        edge_ids: Any = None,
        edge_weights: Any = None,
        layout: str | Mapping[EdgeType, str] = "COO",
        graph_mode: str = "ZERO_COPY",
        directed: bool = False,
        device: torch.device | str | int | None = None,
        num_nodes: int | Mapping[NodeType, int] | None = None,
        *,
        edge_times: Any = None,
        node_times: Any = None,
        device_group_list: Sequence[DeviceGroup] | None = None,
    ) -> None:
        """Builds the graph from edges; see ``Topology`` for shapes. ``directed`` changes nothing: edges are as given.

        Args:
            edge_index: the edges of a homogeneous graph, or a dict by edge type; so are ids, weights and times.
            edge_ids: ids of the edges.
            edge_weights: weights of the edges; a typed graph may have them for some types only.
            layout: how ``edge_index`` is given.
            graph_mode: see ``Graph``.
            directed: not used.
            device: see ``Graph``.
            num_nodes: an int, or a dict by node type: counts nodes beyond the largest id in the edges.
            edge_times: times of the edges, in any unit; a typed graph may have them for some types only.
            node_times: int ``[num_nodes]``, or a dict by node type: when each node came to be. An edge gets the time of
                its neighbor, the end that sampling reaches.
            device_group_list: see ``Graph``.

        Raises:
            InvalidArgumentError: a wrong shape or dtype, an unknown type, an edge id that comes twice, a weight that is
                negative or not finite, or an edge type has times of both kinds.
            UnknownIdError: an edge ends outside the graph.
        """
        edges = by_type(convert_to_tensor(edge_index, name="edge_index"))
        layouts = by_type(layout)
        ids = _per_type("edge_ids", edge_ids, edges)
        weights = _per_type("edge_weights", edge_weights, edges)
        times = _per_type("edge_times", edge_times, edges)
        self._num_nodes = self._count_nodes(edges, layouts, by_type(num_nodes))
        self.node_times = self._check_node_times(by_type(node_times))
        self.earliest_nodes = _earliest(self.node_times)
        graphs = {}
        for edge_type, pair in edges.items():
            source, target = (None, None) if edge_type is None else (edge_type[0], edge_type[2])
            counts = (self._num_nodes[source], self._num_nodes[target])
            form = layouts.get(edge_type, layouts.get(None, "COO"))
            self._check_edges(edge_type, ids.get(edge_type), weights.get(edge_type))
            edge_time = self._edge_times(edge_type, pair, form, times.get(edge_type))
            try:
                topology = self._topology_class(
                    pair,
                    ids.get(edge_type),
                    weights.get(edge_type),
                    form,
                    "CSR" if self.edge_dir == "out" else "CSC",
                    counts,
                    edge_times=edge_time,
                )
            except UnknownIdError as error:
                raise UnknownIdError(f"{label_of('edge_index', edge_type)}: {error}") from error
            graphs[edge_type] = self._graph_class(topology, graph_mode, device, device_group_list=device_group_list)
        self.graph = bare(graphs)

    @staticmethod
    def _check_edges(edge_type: EdgeType | None, edge_ids: Any, edge_weights: Any) -> None:
        """What no layout of the edges changes; named by their type."""
        if edge_ids is not None:
            name = label_of("edge_ids", edge_type)
            check_distinct(name, check_index_tensor(edge_ids, name, what="edge id"))
        if edge_weights is not None:
            name = label_of("edge_weights", edge_type)
            check_weights(name, edge_weights.reshape(-1))

    def _check_node_times(self, node_times: dict[Any, Any]) -> dict[Any, torch.Tensor]:
        """Node times by type as int64, after a look at their dtype and length."""
        _check_types("node_times", node_times, self._num_nodes, "node type")
        checked = {}
        for node_type, values in node_times.items():
            times, count = convert_to_tensor(values, name="node_times"), self._num_nodes[node_type]
            if times.dtype not in (torch.int32, torch.int64) or tuple(times.shape) != (count,):
                raise InvalidArgumentError(
                    f"node_times: expected int64 or int32 [{count}], got {times.dtype} {list(times.shape)}"
                )
            checked[node_type] = times.to(torch.int64)
        return checked

    def _edge_times(self, edge_type: Any, edges: Any, form: str, times: Any) -> Any:
        """Times as given for the edges, or those of the neighbors that they lead to."""
        neighbor_type = edge_ends(edge_type, self.edge_dir)[1]
        if neighbor_type not in self.node_times:
            return times
        if times is not None:
            raise InvalidArgumentError(
                f"edge_times, node_times: expected one of them for edges to {neighbor_type!r}, got both"
            )
        source, target = to_coo(edges, form)
        neighbors = target if self.edge_dir == "out" else source
        neighbors = check_index_tensor(neighbors, "edge_index", num_ids=self._num_nodes[neighbor_type], what="node id")
        return self.node_times[neighbor_type][neighbors]

    def _count_nodes(self, edges: dict[Any, Any], layouts: dict[Any, Any], given: dict[Any, int]) -> dict[Any, int]:
        counts: dict[Any, int] = dict(given)
        for node_type, feature in by_type(self.node_features).items():
            counts.setdefault(node_type, feature.size(0))
        for edge_type, pair in edges.items():
            form = layouts.get(edge_type, layouts.get(None, "COO"))
            ends = (None, None) if edge_type is None else (edge_type[0], edge_type[2])
            for node_type, count in zip(ends, count_ends(pair, form), strict=True):
                if node_type not in given:
                    counts[node_type] = max(counts.get(node_type, 0), count)
        return counts

    def init_node_features(
        self,
        node_feature_data: Any = None,
        id2idx: Any = None,
        sort_func: Any = None,
        split_ratio: float | Mapping[NodeType, float] = 0.0,
        device_group_list: Any = None,
        device: torch.device | str | int | None = None,
        with_gpu: bool = True,
        dtype: torch.dtype | None = None,
        *,
        num_threads: int = 1,
        out_dtype: torch.dtype | None = None,
        hotness: Any = None,
        device_cache: int | str | Mapping[NodeType, int | str] | None = None,
        allow_nonfinite: bool = False,
    ) -> None:
        """Sets node features ``[num_nodes, dim]`` (or a dict by node type); see ``Feature`` for the arguments.

        A loader gathers with threads of its own; ``num_threads`` is for lookups by hand. Which rows GPUs hold is chosen
        by ``hotness``: ``"degree"`` (nodes with the most edges that lead to them, in the direction of sampling; the
        graph comes first), or how often each node is looked up, ``[num_nodes]`` (or a dict by node type of either).
        ``device_cache`` is for each type, or a dict by node type.

        ``sort_func`` is GLT's way to it: ``sort_func(rows, split_ratio, topo)`` gives the rows in another order and
        the new row of each id, see ``data.reorder.sort_by_in_degree``. It is called where GPUs hold rows of a node
        type that one edge type leads to, and copies the rows; ``hotness`` does not.

        Numbers that are infinite or none are an error, unless ``allow_nonfinite`` takes the features without a look at
        them, as for files larger than memory.

        Raises:
            InvalidArgumentError: an argument does not fit; the error names it.
        """
        given = convert_to_tensor(node_feature_data, name="node_feature_data")
        _check_numbers("node_feature_data", given, allow_nonfinite)
        features, rows, ratios, hot = map(by_type, (given, id2idx, split_ratio, hotness))
        for key in features:
            leading_here, ratio = self._topologies_to(key), ratios.get(key, ratios.get(None, 0.0))
            if sort_func is not None and ratio > 0:
                features[key], rows[key] = sort_rows(features[key], rows.get(key), sort_func, ratio, leading_here)
            # A book's `id2index` has no length, and takes no hotness.
            num_ids = len(rows[key] if hasattr(rows.get(key), "__len__") else features[key])
            hot[key] = resolve_hotness(hot.get(key, hot.get(None)), leading_here, num_ids)
        settings: dict[str, Any] = {"device": device, "with_gpu": with_gpu, "dtype": dtype, "num_threads": num_threads}
        make = functools.partial(
            self._feature_class, device_group_list=device_group_list, out_dtype=out_dtype, **settings
        )
        self.node_features = self._features(features, rows, split_ratio, make, hot, device_cache)
        if id2idx is None:
            self._cover({key: feature.size(0) for key, feature in by_type(self.node_features).items()})

    def init_edge_features(
        self,
        edge_feature_data: Any = None,
        id2idx: Any = None,
        split_ratio: float | Mapping[EdgeType, float] = 0.0,
        device_group_list: Any = None,
        device: torch.device | str | int | None = None,
        with_gpu: bool = True,
        dtype: torch.dtype | None = None,
        *,
        num_threads: int = 1,
        out_dtype: torch.dtype | None = None,
        device_cache: int | str | Mapping[EdgeType, int | str] | None = None,
        allow_nonfinite: bool = False,
    ) -> None:
        """Sets edge features ``[num_edges, dim]`` by edge id (or a dict by edge type); see ``init_node_features``."""
        settings: dict[str, Any] = {"device": device, "with_gpu": with_gpu, "dtype": dtype, "num_threads": num_threads}
        make = functools.partial(
            self._feature_class, device_group_list=device_group_list, out_dtype=out_dtype, **settings
        )
        given = convert_to_tensor(edge_feature_data, name="edge_feature_data")
        _check_numbers("edge_feature_data", given, allow_nonfinite)
        self.edge_features = self._features(given, id2idx, split_ratio, make, {}, device_cache)

    @staticmethod
    def _features(
        data: Any,
        id2idx: Any,
        split_ratio: Any,
        make: Callable[..., Feature],
        hot: Mapping[Any, Any],
        device_cache: Any,
    ) -> Any:
        tensors, rows, ratios, caches = map(by_type, (data, id2idx, split_ratio, device_cache))
        _check_types("id2idx", rows, tensors, "type")
        features = {
            key: make(
                tensor,
                id2index=rows.get(key),
                split_ratio=ratios.get(key, ratios.get(None, 0.0)),
                hotness=hot.get(key),
                device_cache=caches.get(key, caches.get(None)),
            )
            for key, tensor in tensors.items()
        }
        return bare(features)

    def _topologies_to(self, node_type: NodeType | None) -> list[Topology]:
        """Of the edge types whose neighbors are of this type, in the direction of sampling."""
        graphs = by_type(self.graph).items()
        return [graph.topo for key, graph in graphs if edge_ends(key, self.edge_dir)[1] == node_type]

    def init_node_labels(self, node_label_data: Any = None, id2idx: Any = None) -> None:
        """Sets labels of any shape ``[num_nodes, ...]`` (or a dict by node type).

        Batches have rows of that shape: ``[num_nodes, 1]`` is not squeezed, as PyG's loaders do not.
        """
        self.node_labels = convert_to_tensor(node_label_data, name="node_label_data")
        _check_numbers("node_label_data", self.node_labels, True)
        self._label_rows = by_type(id2idx)
        _check_types("id2idx", self._label_rows, by_type(self.node_labels), "type")
        if id2idx is None:
            self._cover({key: labels.size(0) for key, labels in by_type(self.node_labels).items()})

    def _cover(self, num_rows: Mapping[Any, int]) -> None:
        """Makes the graph cover nodes that have a row but no edge, where it was built before the rows came."""
        for node_type, count in num_rows.items():
            if self._num_nodes.get(node_type, count) >= count:
                continue
            self._num_nodes[node_type] = count
            self._cover_graphs(node_type)

    def _cover_graphs(self, node_type: NodeType | None) -> None:
        count = self._num_nodes[node_type]
        for edge_type, graph in by_type(self.graph).items():
            rows, cols = edge_ends(edge_type, self.edge_dir)
            graph.cover(count if rows == node_type else 0, count if cols == node_type else 0)

    def init_order(self, order: ZoneOrder | Mapping[NodeType, ZoneOrder]) -> None:
        """Sets the order of the nodes, of which loaders make batches of near seeds (``locality``).

        Args:
            order: a ``ZoneOrder``, or a dict by node type.

        Raises:
            InvalidArgumentError: an unknown type, or no order of as many nodes.
        """
        orders, schema = by_type(order), self.schema
        for node_type, one in orders.items():
            count = schema.num_nodes[schema.node_type_index(node_type, "order")]
            check_order(one, count, label_of("order", node_type))
        self.node_orders = dict(orders)

    def init_node_split(self, node_split: Any = None) -> None:
        """Sets (train, valid, test) ids, each a tensor or a dict by node type; no node may be in two of them."""
        if node_split is not None:
            if not isinstance(node_split, (tuple, list)) or len(node_split) != len(Split):
                raise InvalidArgumentError(f"node_split: expected (train, val, test), got {type(node_split).__name__}")
            parts = zip(Split, node_split, strict=True)
            ids = [convert_to_tensor(part, name=f"node_split, {split.value} split") for split, part in parts]
            named = [(split.value, by_type(part)) for split, part in zip(Split, ids, strict=True)]
            for key in {key for _, found in named for key in found}:
                check_disjoint(label_of("node_split", key), {name: found[key] for name, found in named if key in found})
            self.train_idx, self.val_idx, self.test_idx = ids

    def random_node_split(self, num_val: float | int, num_test: float | int, seed: int = 0) -> None:
        """Splits the nodes at random (a function of the seed); numbers below 1 are shares."""
        schema = self.schema
        counts = zip(schema.node_types, schema.num_nodes, strict=True)
        parts = {key: random_split(count, num_val, num_test, seed=seed) for key, count in counts}
        if None in parts:
            self.init_node_split(parts[None])
        else:
            self.init_node_split(tuple({key: part[i] for key, part in parts.items()} for i in range(3)))

    # --- reading -----------------------------------------------------------------------------------------------

    @property
    def schema(self) -> GraphSchema:
        """Types and counts of the whole data set."""
        edge_types = tuple(sorted(by_type(self.graph), key=lambda edge_type: edge_type or ()))
        named = {*self._num_nodes, *by_type(self.node_features), *by_type(self.node_labels)}
        node_types = collect_node_types(edge_types, named)
        counts = tuple(self._node_count(name) for name in node_types)
        return GraphSchema(node_types, edge_types, counts, self.edge_dir, self.table_columns)

    def _node_count(self, node_type: NodeType | None) -> int:
        """Nodes of a type: as given, else as many as its features, labels and edges reach, and then its graphs cover
        them: several graphs that lead to and from one type have seen different nodes of it."""
        if node_type in self._num_nodes:
            return self._num_nodes[node_type]
        rows = (by_type(self.node_features), by_type(self.node_labels))
        extents = [found[node_type].shape[0] for found in rows if node_type in found]
        for edge_type, graph in by_type(self.graph).items():
            ends = zip(edge_ends(edge_type, self.edge_dir), (graph.num_row_nodes, graph.col_count), strict=True)
            extents += [extent for name, extent in ends if name == node_type]
        self._num_nodes[node_type] = max(extents)
        self._cover_graphs(node_type)
        return self._num_nodes[node_type]

    def stores(self) -> dict[str, Feature]:
        """Every store of features, labels and node times by its name (see ``store_name``)."""
        schema, found = self.schema, {}
        for node_type, feature in by_type(self.node_features).items():
            found[store_name(NODE_FEATURE, schema.node_type_index(node_type))] = feature
        for node_type, labels in by_type(self.node_labels).items():
            rows = self._label_rows.get(node_type)
            found[store_name(NODE_LABEL, schema.node_type_index(node_type))] = Feature(labels, rows, dtype=None)
        for node_type, times in self.node_times.items():
            rows = self._rows_of(node_type)
            found[store_name(NODE_TIME, schema.node_type_index(node_type))] = Feature(times, rows, dtype=None)
        for edge_type, feature in by_type(self.edge_features).items():
            found[store_name(EDGE_FEATURE, schema.edge_types.index(edge_type))] = feature
        return found | column_stores(schema, self._columns, (self._rows_of, self._edge_rows_of))

    def limit_feature_memory(self, nbytes: int | str) -> None:
        """Has node and edge features that lie in files take at most so much memory together, in this process.

        Where they are larger, their rows are read from the files, past the page cache, and as many are kept as fit.
        Loaders sample some batches ahead, so that the rows of these are read before they are looked up and stay until
        then. Batches are the same. Features in memory, labels and times stay where they are.

        Args:
            nbytes: for all of them, in bytes or as text such as ``"4GB"``. A process that is forked from this one, and
                looks up rows, takes as much again.

        Raises:
            InvalidArgumentError: it is no size.
        """
        total = parse_size(nbytes, name="feature_memory")
        self.feature_memory = FeatureMemory(total, total)
        divide_memory(self.features_in_use(), self.feature_memory)

    def features_in_use(self) -> list[Feature]:
        """Node and edge features, as batches have them."""
        return [*by_type(self.node_features).values(), *by_type(self.edge_features).values()]

    def _rows_of(self, node_type: NodeType | None) -> Any:
        """Where nodes have their rows of what ``init_graph`` was given, for ``Feature``; None: a row is an id."""
        return None

    def split_ids(self, split: Split, node_type: NodeType | None = None) -> torch.Tensor:
        """The ids of one split, int64; an error says if the data set has none."""
        parts = {Split.train: self.train_idx, Split.valid: self.val_idx, Split.test: self.test_idx}
        if (ids := by_type(parts[split]).get(node_type)) is None:
            self.schema.node_type_index(node_type, "input_nodes")  # an unknown type is the mistake that is to be told
            there = [
                repr(other.value) + ("" if name is None else f" of {name}")
                for other, part in parts.items()
                for name, found in by_type(part).items()
                if found is not None
            ]
            of_type = "" if node_type is None else f" of {node_type}"
            known = ", ".join(there) or "none"
            raise InvalidArgumentError(
                f"input_nodes: the data set has no {split.value!r} split{of_type}; its splits: {known}"
            )
        return check_index_tensor(ids, f"{split.value} split").to(torch.int64)

    def graphs(self) -> dict[EdgeType | None, Graph]:
        """What is sampled from, by edge type."""
        return by_type(self.graph)

    def get_graph(self, etype: EdgeType | None = None) -> Graph | None:
        return by_type(self.graph).get(etype)

    def get_node_types(self) -> list[NodeType]:
        return [name for name in self.schema.node_types if name is not None]

    def get_edge_types(self) -> list[EdgeType]:
        return [name for name in self.schema.edge_types if name is not None]

    def get_node_feature(self, ntype: NodeType | None = None) -> Feature | None:
        return by_type(self.node_features).get(ntype)

    def get_edge_feature(self, etype: EdgeType | None = None) -> Feature | None:
        return by_type(self.edge_features).get(etype)

    def get_node_label(self, ntype: NodeType | None = None) -> torch.Tensor | None:
        return by_type(self.node_labels).get(ntype)

    def edges(self, etype: EdgeType | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The edges of a type: ids, sources and targets, int64 ``[num_edges]`` each, row by row."""
        source, target, edge_ids, _ = self.graphs()[etype].topo.to_coo()
        return edge_ids.to(torch.int64), source.to(torch.int64), target.to(torch.int64)

    def num_edge_ids(self, etype: EdgeType | None = None) -> int | None:
        """Ids of a type's edges are below this; 0 where there is no such type, None where it is not known."""
        graph = self.graphs().get(etype)
        return 0 if graph is None else graph.topo.num_edge_ids

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key, None)

    # --- sharing -----------------------------------------------------------------------------------------------

    def sample_on(self, device: torch.device | str | int) -> None:
        """Has a GPU sample and gather from now on, in the place of the one that graphs and features were given.

        Each process does so that was sent the data set of another and has a GPU of its own. What a group of GPUs holds
        (``device_group_list``) is there once, whichever of them reads it. Loaders that were made before stay on theirs.

        Raises:
            InvalidArgumentError: there is no such GPU, or it is not of the groups; nothing of the data set is on one.
                Nothing is moved then.
        """
        usable_gpu(device)
        graphs = [graph for graph in self.graphs().values() if graph.device is not None]
        features = (*by_type(self.node_features).values(), *by_type(self.edge_features).values())
        if not graphs and not any(feature.gathers_on_gpu for feature in features):
            raise InvalidArgumentError("device: expected a data set with graphs or features on a GPU, got one without")
        before = [(each, each.device) for each in (*graphs, *features)]
        try:
            for graph in graphs:
                graph.sample_on(device)
            for feature in features:
                feature.gather_on(device)
        except BaseException:
            for each, gpu in before:
                each.device = gpu
            raise

    def share_ipc(self) -> Any:
        """A handle with which another process of this host maps the same memory while this data set lives.

        What is in private memory is moved to shared memory once; what is mapped from files stays where it is.
        """
        with shared_memory.moving:
            self._move_to_shared_memory()
            return WholeDatasetHandle(
                edge_dir=self.edge_dir,
                num_nodes=dict(self._num_nodes),
                graphs={key: graph.share_ipc() for key, graph in by_type(self.graph).items()},
                node_features={key: feature.share_ipc() for key, feature in by_type(self.node_features).items()},
                edge_features={key: feature.share_ipc() for key, feature in by_type(self.edge_features).items()},
                node_labels=handles_of(self.node_labels),
                label_rows=handles_of(self._label_rows),
                node_times=handles_of(self.node_times),
                columns=tuple(map(handles_by_type, self._columns)),
                constants=self.constants,
                splits=tuple(map(handles_of, (self.train_idx, self.val_idx, self.test_idx))),
                node_orders=order_handles(self.node_orders),
            )

    def _move_to_shared_memory(self) -> None:
        """Labels, times, orders and splits; graphs and features move when they are described."""
        self.node_labels = shared_memory.share_all(self.node_labels)
        self._label_rows = share_tables(self._label_rows)
        self.node_times = shared_memory.share_all(self.node_times)
        self._share_columns()
        self.node_orders = {key: order.share_memory() for key, order in self.node_orders.items()}
        for name in ("train_idx", "val_idx", "test_idx"):
            setattr(self, name, shared_memory.share_all(getattr(self, name)))

    @classmethod
    def from_ipc_handle(cls, ipc_handle: Any) -> Dataset:
        """The data set that ``share_ipc`` described, over the same memory."""
        handle: WholeDatasetHandle = ipc_handle
        dataset = cls(
            bare({key: Graph.from_ipc_handle(graph) for key, graph in handle.graphs.items()}),
            bare({key: Feature.from_ipc_handle(feature) for key, feature in handle.node_features.items()}),
            bare({key: Feature.from_ipc_handle(feature) for key, feature in handle.edge_features.items()}),
            bare(tensors_of(handle.node_labels)),
            handle.edge_dir,
            tuple(bare(tensors_of(part)) for part in handle.splits),
        )
        dataset._num_nodes, dataset._label_rows = dict(handle.num_nodes), tensors_of(handle.label_rows)
        dataset.node_times = tensors_of(handle.node_times)
        dataset.earliest_nodes = _earliest(dataset.node_times)
        dataset._open_columns(handle.columns, handle.constants)
        dataset.node_orders = open_orders(handle.node_orders)
        return dataset


def _earliest(node_times: Mapping[Any, torch.Tensor]) -> dict[Any, int]:
    return {key: earliest(times) for key, times in node_times.items() if len(times)}


def rebuild_dataset(ipc_handle: WholeDatasetHandle) -> Dataset:
    return Dataset.from_ipc_handle(ipc_handle)  # what ``reduce_dataset`` described


def reduce_dataset(dataset: Dataset) -> tuple[Any, ...]:
    """How a data set goes to another process through ``multiprocessing``: as a handle to the same memory.

    Its sender must still live when it is received. ``pickle`` and ``copy`` take the rows themselves.
    """
    return rebuild_dataset, (dataset.share_ipc(),)


ForkingPickler.register(Dataset, reduce_dataset)

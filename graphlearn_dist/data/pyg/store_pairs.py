"""Pairs of PyG's ``FeatureStore`` and ``GraphStore``: their edges, and rows in the order of nodes and edges."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...utils.shown import shown
from ...utils.tensor import host_tensor

_LAYOUTS = ("csc", "coo", "csr")  # of an edge type that is stored in several: as PyG's sampler prefers them
_NODE_TIMES = "time"  # of a homogeneous pair of stores; PyG tells times of nodes from those of edges by this name


def is_pyg_stores(data: Any) -> bool:
    """Whether this is a ``FeatureStore`` and a ``GraphStore``, as PyG's loaders take them."""
    if not isinstance(data, (tuple, list)) or len(data) != 2 or "torch_geometric" not in sys.modules:
        return False
    from torch_geometric.data import FeatureStore, GraphStore

    return isinstance(data[0], FeatureStore) and isinstance(data[1], GraphStore)


def is_pyg_data(data: Any) -> bool:
    """Whether this is data of PyG's: an object of its, or a pair of stores."""
    if "torch_geometric" not in sys.modules:  # nobody has made one
        return False
    from torch_geometric.data import Data, HeteroData

    return isinstance(data, (Data, HeteroData)) or is_pyg_stores(data)


def read_stores(
    features: Any, graph: Any, weight_attr: str | None = None, time_attr: str | None = None
) -> tuple[dict[Any, Any], ...]:
    """By type, what a pair of stores has of a graph; it is asked once and now.

    Returns:
        Edges as the graph store gives them, their layouts, counts of nodes, weights of edges, times of edges, times of
        nodes. The one type of a homogeneous graph is None.

    Raises:
        InvalidArgumentError: the feature store lists no attribute of that name, or lists it of nodes and of edges.
    """
    chosen = _chosen_edges(graph)
    edges = {key: tuple(map(_on_host, graph.get_edge_index(attr))) for key, attr in chosen.items()}
    layouts = {key: attr.layout.value.upper() for key, attr in chosen.items()}
    num_nodes = _count_nodes(features, chosen)
    if _is_homogeneous(chosen, num_nodes):
        weights = _tensors(features, graph, weight_attr, "weight_attr", edges, num_nodes)
        times = _tensors(features, graph, time_attr, "time_attr", edges, num_nodes)
        of_nodes = time_attr == _NODE_TIMES
        return edges, layouts, num_nodes, weights, {} if of_nodes else times, times if of_nodes else {}
    weights = _tensors(features, graph, weight_attr, "weight_attr", edges, num_nodes)
    times = _tensors(features, graph, time_attr, "time_attr", (*num_nodes, *edges), num_nodes)
    node_times = {key: values for key, values in times.items() if key in num_nodes}
    if node_times and len(node_times) < len(times):
        raise InvalidArgumentError(f"time_attr: expected times of nodes or of edges, got {shown(time_attr)} for both")
    return edges, layouts, num_nodes, weights, {} if node_times else times, node_times


def data_of_stores(features: Any, graph: Any) -> Any:
    """``Data`` or ``HeteroData`` of all that a pair of stores lists: it is asked for whole tensors, once and now.

    Edges are in the order in which the graph store has them, of which their ids are the positions. Rows that a store
    has by ids of its own (``torch_geometric.distributed.LocalFeatureStore``) come in the order of nodes and edges. Of
    attributes of edges, a store lists those of tuples, and what its ``edge_tensor_attrs()`` gives, where it has that
    method.

    Raises:
        InvalidArgumentError: the feature store has no row of some edge.
    """
    from torch_geometric.data import Data, HeteroData

    edges, layouts, num_nodes, *_ = read_stores(features, graph)
    is_single = _is_homogeneous(edges, num_nodes)
    data: Any = Data() if is_single else HeteroData()
    for key, count in num_nodes.items():
        (data if is_single else data[key]).num_nodes = count
    for key, pair in edges.items():
        (data if is_single else data[key]).edge_index = _as_pairs(pair, layouts[key])
    listed = [*features.get_all_tensor_attrs(), *getattr(features, "edge_tensor_attrs", list)()]
    for attr in listed:
        store = data if is_single else data[attr.group_name]
        store[attr.attr_name] = _in_order(features, graph, attr, num_nodes, is_single)
    return data


def is_of_edges(attr: Any) -> bool:
    """Whether a feature store's attribute is of edges; PyG's stores name these's groups by tuples."""
    return isinstance(attr.group_name, tuple)


def edge_rows(features: Any, graph: Any, edge_type: Any, group: Any) -> torch.Tensor | None:
    """The rows that a feature store has of all edges of a type, int64 ``[num_edges]``, in the graph store's order.

    Both stores may know the edges by ids (PyG's ``LocalFeatureStore`` and ``LocalGraphStore``); else None: the rows are
    in the order of the edges.

    Args:
        features: the feature store.
        graph: the graph store.
        edge_type: the type there; None in a homogeneous graph.
        group: the type's group in the feature store.

    Raises:
        InvalidArgumentError: there is an edge without a row.
    """
    if not hasattr(features, "get_global_id") or not hasattr(graph, "get_edge_id"):
        return None
    attr = _chosen_edges(graph).get(edge_type)
    row_ids = features.get_global_id(group)
    edge_ids = None if attr is None else graph.get_edge_id(attr)
    if row_ids is None or edge_ids is None:
        return None
    return _unless_in_order(RowsById("edges", group, row_ids).find(host_tensor(edge_ids, "data").long()))


def _node_rows(features: Any, attr: Any, num_nodes: Mapping[Any, int], is_single: bool) -> torch.Tensor | None:
    """The rows of all nodes by their ids, where a feature store knows these; else None: they are in the order of ids.

    Raises:
        InvalidArgumentError: there is a node without a row.
    """
    by_id = RowsById.of_nodes(features, attr.group_name)
    count = num_nodes.get(None if is_single else attr.group_name)
    return None if by_id is None or count is None else _unless_in_order(by_id.find(torch.arange(count)))


def takes_positions(features: Any) -> bool:
    """Whether a feature store that knows ids is asked by positions all the same, as PyG's ``LocalFeatureStore`` is.

    A class of a program's own may find the rows of ids itself, as PyG's loaders ask by ids.
    """
    module = sys.modules.get("torch_geometric.distributed.local_feature_store")
    if module is None or not isinstance(features, module.LocalFeatureStore):
        return False
    asked = ("get_tensor", "_get_tensor", "multi_get_tensor", "_multi_get_tensor")
    return all(getattr(type(features), name) is getattr(module.LocalFeatureStore, name) for name in asked)


class RowsById:
    """Which rows nodes or edges have in a feature store that knows them by ids (PyG's ``LocalFeatureStore``).

    Args:
        kind: ``"nodes"`` or ``"edges"``.
        group: of the features.
        ids: of those whose rows they are.
    """

    def __init__(self, kind: str, group: Any, ids: torch.Tensor) -> None:
        self._kind, self._group, self._ids, self._version = kind, group, ids, ids._version
        self._sorted, self._rows = host_tensor(ids, "data").long().sort()

    @classmethod
    def of_nodes(cls, features: Any, group: Any, known: RowsById | None = None) -> RowsById | None:
        """Those of a group of nodes: ``known`` as long as its ids are the same; None where it has none."""
        ids = features.get_global_id(group) if hasattr(features, "get_global_id") else None
        if ids is None:
            return None
        return known if known is not None and known.is_of(ids) else cls("nodes", group, ids)

    def is_of(self, ids: torch.Tensor) -> bool:
        """Whether these are its ids still."""
        return ids is self._ids and ids._version == self._version

    def find(self, wanted: torch.Tensor) -> torch.Tensor:
        """The rows of some ids, int64.

        Raises:
            InvalidArgumentError: one has none.
        """
        if not len(self._sorted):
            rows, is_there = torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
        else:
            places = torch.searchsorted(self._sorted, wanted).clamp(max=len(self._sorted) - 1)
            rows, is_there = self._rows[places], self._sorted[places] == wanted
        if not bool(is_there.all()):
            missing = wanted[~is_there].tolist()
            raise InvalidArgumentError(
                f"data: expected rows of features for all {len(wanted)} {self._kind} of group {self._group}, got none "
                f"for {len(missing)} of them, such as the one of id {missing[0]}"
            )
        return rows


def _unless_in_order(rows: torch.Tensor) -> torch.Tensor | None:
    return None if torch.equal(rows, torch.arange(len(rows))) else rows


def _chosen_edges(graph: Any) -> dict[Any, Any]:
    """By edge type, the attribute of the layout that is read."""
    by_type: dict[Any, dict[str, Any]] = {}
    for attr in graph.get_all_edge_attrs():
        by_type.setdefault(attr.edge_type, {})[attr.layout.value] = attr
    return {key: next(given[name] for name in _LAYOUTS if name in given) for key, given in by_type.items()}


def _is_homogeneous(edges: Mapping[Any, Any], num_nodes: Mapping[Any, int]) -> bool:
    """As PyG has it: where edges have no type, groups of features have any names; without edges the groups say it."""
    return None in edges or (not edges and all(key is None for key in num_nodes))


def _tensors(
    features: Any, graph: Any, name: str | None, argument: str, types: Any, num_nodes: Mapping[Any, int]
) -> dict[Any, torch.Tensor]:
    """Whole tensors of one name, by those of some types that have it; None names none.

    In a homogeneous graph, whose one type is None, the name alone says which it is, as in PyG's sampler.
    """
    if name is None:
        return {}
    is_single = None in types
    there = [
        attr
        for attr in features.get_all_tensor_attrs()
        if attr.attr_name == name and (is_single or attr.group_name in types)
    ]
    if not there:
        raise InvalidArgumentError(f"{argument}: the feature store lists no attribute {name!r} of any type")
    if is_single and len(there) > 1:
        groups = [attr.group_name for attr in there]
        raise InvalidArgumentError(f"{argument}: expected one attribute {name!r}, got some of groups {groups}")
    return {
        None if is_single else attr.group_name: _in_order(features, graph, attr, num_nodes, is_single) for attr in there
    }


def _in_order(features: Any, graph: Any, attr: Any, num_nodes: Mapping[Any, int], is_single: bool) -> Any:
    """A whole tensor in the order of the nodes, or of the graph store's edges."""
    rows = _whole(features, attr)
    if is_of_edges(attr):
        order = edge_rows(features, graph, None if is_single else attr.group_name, attr.group_name)
    else:
        order = _node_rows(features, attr, num_nodes, is_single)
    return rows if order is None else rows[order]


def _whole(features: Any, attr: Any) -> Any:
    group = attr.group_name
    if group is None or isinstance(group, (str, tuple)):
        return features.get_tensor(group, attr.attr_name, None)
    return features.get_tensor(attr_name=attr.attr_name, index=None)  # ``Data`` as a store knows no groups


def _count_nodes(features: Any, edge_attrs: Mapping[Any, Any]) -> dict[Any, int]:
    """By node type, the larger of what the edges' sizes and the features say; what neither says is left to the ids."""
    counts: dict[Any, int] = {}
    for key, attr in edge_attrs.items():
        ends = (None, None) if key is None else (key[0], key[2])
        for node_type, size in zip(ends, attr.size or (None, None), strict=True):
            if size is not None:
                counts[node_type] = max(counts.get(node_type, 0), size)
    is_single = None in edge_attrs
    for attr in features.get_all_tensor_attrs():
        if is_of_edges(attr):
            continue
        node_type = attr.group_name if isinstance(attr.group_name, str) and not is_single else None
        # Of a homogeneous graph, the tensors of one name may be of edges; its edges say how many nodes there are.
        if node_type not in counts and (node_type is not None or not counts):
            size = features.get_tensor_size(attr)
            if size is not None:
                counts[node_type] = size[0]
    return counts


def _as_pairs(pair: tuple[torch.Tensor, torch.Tensor], layout: str) -> torch.Tensor:
    """The edges ``[2, num_edges]`` of what a graph store gives, in its order."""
    ends = [torch.as_tensor(end) for end in pair]
    if layout != "COO":
        compressed = 0 if layout == "CSR" else 1
        offsets = ends[compressed]
        ends[compressed] = torch.repeat_interleave(torch.arange(offsets.numel() - 1), offsets.diff())
    return torch.stack(ends)


def _on_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value

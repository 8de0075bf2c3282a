"""The graph of what PyG's loaders take as their data: ``Data``, ``HeteroData``, or a pair of stores."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...utils.shown import shown
from ..dataset import Dataset
from ..schema import EdgeDirection, bare
from ..sources import edges_by_type, weights_and_times
from .pyg_levels import read_levels

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


def graph_of_pyg(
    data: Any, edge_dir: EdgeDirection = "in", *, weight_attr: str | None = None, time_attr: str | None = None
) -> Dataset:
    """The graph of PyG's data as a ``Dataset`` without features, whose edge ids are the positions of the edges there.

    Types without edges are there, and so is a graph that has none. A pair of stores is asked for its edges, and for the
    attributes that are named here, once and now.

    Args:
        data: see ``is_pyg_data``.
        edge_dir: ``"in"`` samples in-neighbors, as PyG's loaders do.
        weight_attr: the attribute of edges that holds their weights; types may lack it.
        time_attr: the attribute of nodes or of edges that holds their times.

    Raises:
        InvalidArgumentError: there is no such attribute, it is none of numbers, or the edges are of a kind that is not
            read; the error names the argument.
    """
    edges, layouts, num_nodes, weights, edge_times, node_times = (
        _of_stores(data[0], data[1], weight_attr, time_attr)
        if is_pyg_stores(data)
        else _of_data(data, weight_attr, time_attr)
    )
    dataset = Dataset(edge_dir=edge_dir)
    dataset.init_graph(
        bare(edges),
        edge_weights=bare(weights),
        layout=bare(layouts) or "COO",
        num_nodes=bare(num_nodes),
        edge_times=bare(edge_times),
        node_times=bare(node_times),
    )
    return dataset


def _of_data(data: Any, weight_attr: str | None, time_attr: str | None) -> tuple[dict[Any, Any], ...]:
    levels = read_levels(data, {name for name in (weight_attr, time_attr) if name is not None})
    weights, edge_times, node_times = weights_and_times(data, levels, weight_attr, time_attr)
    edges = edges_by_type(data, levels)
    found = (edges, dict.fromkeys(edges, "COO"), levels.num_nodes, weights, edge_times, node_times)
    return tuple({key: _on_host(value) for key, value in part.items()} for part in found)


def _on_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _of_stores(features: Any, graph: Any, weight_attr: str | None, time_attr: str | None) -> tuple[dict[Any, Any], ...]:
    by_type: dict[Any, dict[str, Any]] = {}
    for attr in graph.get_all_edge_attrs():
        by_type.setdefault(attr.edge_type, {})[attr.layout.value] = attr
    chosen = {key: next(given[name] for name in _LAYOUTS if name in given) for key, given in by_type.items()}
    edges = {key: tuple(map(_on_host, graph.get_edge_index(attr))) for key, attr in chosen.items()}
    layouts = {key: attr.layout.value.upper() for key, attr in chosen.items()}
    num_nodes = _count_nodes(features, chosen)
    weights = _tensors(features, weight_attr, "weight_attr", edges)
    if None in edges:
        times = _tensors(features, time_attr, "time_attr", (None,))
        of_nodes = time_attr == _NODE_TIMES
        return edges, layouts, num_nodes, weights, {} if of_nodes else times, times if of_nodes else {}
    times = _tensors(features, time_attr, "time_attr", (*num_nodes, *edges))
    node_times = {key: values for key, values in times.items() if key in num_nodes}
    if node_times and len(node_times) < len(times):
        raise InvalidArgumentError(f"time_attr: expected times of nodes or of edges, got {shown(time_attr)} for both")
    return edges, layouts, num_nodes, weights, {} if node_times else times, node_times


def _tensors(features: Any, name: str | None, argument: str, keys: Any) -> dict[Any, torch.Tensor]:
    """Whole tensors of one name, by the types that have it; None names none."""
    if name is None:
        return {}
    there = [attr for attr in features.get_all_tensor_attrs() if attr.attr_name == name and attr.group_name in keys]
    if not there:
        raise InvalidArgumentError(f"{argument}: the feature store lists no attribute {name!r} of any type")
    return {attr.group_name: features.get_tensor(attr.group_name, name, None) for attr in there}


def _count_nodes(features: Any, edge_attrs: Mapping[Any, Any]) -> dict[Any, int]:
    """By node type, the larger of what the edges' sizes and the features say; what neither says is left to the ids."""
    counts: dict[Any, int] = {}
    for key, attr in edge_attrs.items():
        ends = (None, None) if key is None else (key[0], key[2])
        for node_type, size in zip(ends, attr.size or (None, None), strict=True):
            if size is not None:
                counts[node_type] = max(counts.get(node_type, 0), size)
    for attr in features.get_all_tensor_attrs():
        # Of a homogeneous graph, the tensors of one name may be of edges; its edges say how many nodes there are.
        if isinstance(attr.group_name, str) or (attr.group_name is None and not counts):
            size = features.get_tensor_size(attr)
            if size is not None and attr.group_name not in counts:
                counts[attr.group_name] = size[0]
    return counts


def data_of_stores(features: Any, graph: Any) -> Any:
    """``Data`` or ``HeteroData`` of all that a pair of stores lists: it is asked for whole tensors, once and now.

    Edges are in the order in which the graph store has them, of which their ids are the positions. Of attributes of
    edges a store lists only what its ``edge_tensor_attrs()`` gives, where it has that method.
    """
    from torch_geometric.data import Data, HeteroData

    edges, layouts, num_nodes, *_ = _of_stores(features, graph, None, None)
    typed = any(key is not None for key in (*edges, *num_nodes))
    data: Any = HeteroData() if typed else Data()
    for key, count in num_nodes.items():
        (data if key is None else data[key]).num_nodes = count
    for key, pair in edges.items():
        (data if key is None else data[key]).edge_index = _as_pairs(pair, layouts[key])
    listed = [*features.get_all_tensor_attrs(), *getattr(features, "edge_tensor_attrs", list)()]
    for attr in listed:
        name, group = attr.attr_name, attr.group_name
        if group is None or isinstance(group, (str, tuple)):
            (data if group is None else data[group])[name] = features.get_tensor(group, name, None)
        else:  # ``Data`` as a store knows no groups, and leaves them out
            data[name] = features.get_tensor(attr_name=name, index=None)
    return data


def _as_pairs(pair: tuple[torch.Tensor, torch.Tensor], layout: str) -> torch.Tensor:
    """The edges ``[2, num_edges]`` of what a graph store gives, in its order."""
    ends = [torch.as_tensor(end) for end in pair]
    if layout != "COO":
        compressed = 0 if layout == "CSR" else 1
        offsets = ends[compressed]
        ends[compressed] = torch.repeat_interleave(torch.arange(offsets.numel() - 1), offsets.diff())
    return torch.stack(ends)

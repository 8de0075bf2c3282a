"""The graph of what PyG's loaders take as their data: ``Data``, ``HeteroData``, or a pair of stores."""

from __future__ import annotations

from typing import Any

import torch

from ..dataset import Dataset
from ..schema import EdgeDirection, bare
from ..sources import edges_by_type, weights_and_times
from .pyg_levels import read_levels
from .store_pairs import is_pyg_stores, read_stores


def graph_of_pyg(
    data: Any, edge_dir: EdgeDirection = "in", *, weight_attr: str | None = None, time_attr: str | None = None
) -> Dataset:
    """The graph of PyG's data as a ``Dataset`` without features, whose edge ids are the positions of the edges there.

    Types without edges are there, and so is a graph that has none. A pair of stores is asked for its edges, and for the
    attributes that are named here, once and now.

    Args:
        data: see ``store_pairs.is_pyg_data``.
        edge_dir: ``"in"`` samples in-neighbors, as PyG's loaders do.
        weight_attr: the attribute of edges that holds their weights; types may lack it.
        time_attr: the attribute of nodes or of edges that holds their times.

    Raises:
        InvalidArgumentError: there is no such attribute, it is none of numbers, or the edges are of a kind that is not
            read; the error names the argument.
    """
    edges, layouts, num_nodes, weights, edge_times, node_times = (
        read_stores(data[0], data[1], weight_attr, time_attr)
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

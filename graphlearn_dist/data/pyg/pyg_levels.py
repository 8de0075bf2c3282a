"""What a PyG object holds, told apart as PyG does: of nodes, of edges, and of the graph."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...errors import InvalidArgumentError
from ...utils.tensor import convert_to_tensor
from .pyg_adjacency import edges_of

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

_CHOOSE = "; attrs= names the attributes that batches carry"
_NO_ROWS = ("num_nodes", "edge_index", "adj", "adj_t")


@dataclass(frozen=True)
class Levels:
    """The attributes of a PyG object, by type (the one key None if it has one unnamed type) and by name.

    Attributes:
        num_nodes: by node type.
        nodes: one row for each node, ``[num_nodes, ...]``.
        edges: one row for each edge, ``[num_edges, ...]``, and the ``edge_index``, of an ``adj_t`` too.
        constants: by node type, edge type, or None for the whole graph: everything else, as it is.
    """

    num_nodes: dict[Any, int]
    nodes: dict[Any, dict[str, torch.Tensor]]
    edges: dict[Any, dict[str, torch.Tensor]]
    constants: dict[Any, dict[str, Any]]

    def of_nodes(self, name: str | None) -> dict[Any, torch.Tensor]:
        """An attribute of nodes, by the types that have it."""
        return {key: of_type[name] for key, of_type in self.nodes.items() if name is not None and name in of_type}

    def of_edges(self, name: str | None) -> dict[Any, torch.Tensor]:
        """An attribute of edges, likewise."""
        return {key: of_type[name] for key, of_type in self.edges.items() if name is not None and name in of_type}


def read_levels(data: Data | HeteroData, names: Collection[str] | None = None) -> Levels:
    """Reads ``Data`` or ``HeteroData``; tensors are plain ones over the same memory where that is possible.

    Args:
        data: the object.
        names: the attributes to read; all of them unless given. The edges are always read.

    Raises:
        InvalidArgumentError: there is one value for each node or edge, and these are no numbers.
    """
    is_typed = hasattr(data, "node_types")
    stores = list(_stores(data))
    # First of all: PyG counts nodes and edges by them.
    edge_index = {key: pair for key, store in stores if (pair := edges_of(store)) is not None}
    node_types, edge_types = (data.node_types, data.edge_types) if is_typed else ([None], [None])
    ends = [end for key in edge_index for end in key[::2]] if is_typed else []  # also of types without a storage
    num_nodes = {key: count_nodes(data, key, edge_index) for key in dict.fromkeys([*node_types, *ends])}
    nodes: dict[Any, dict[str, torch.Tensor]] = {key: {} for key in node_types}
    edges = {key: {"edge_index": edge_index[key]} if key in edge_index else {} for key in edge_types}
    constants: dict[Any, dict[str, Any]] = {}
    for key, store in stores:
        for name, value in store.items():
            if name in _NO_ROWS or value is None or (names is not None and name not in names):
                continue
            if key in nodes and store.is_node_attr(name):
                nodes[key][name] = _rows(data, store, name, value)
            elif key in edges and store.is_edge_attr(name):
                edges[key][name] = _rows(data, store, name, value)
            else:
                constants.setdefault(key, {})[name] = value
    return Levels(num_nodes, nodes, edges, constants)


def count_nodes(data: Any, node_type: Any, edge_index: Mapping[Any, torch.Tensor] | None = None) -> int:
    """Nodes of a type that the data have; where PyG cannot tell, as many as its edges tell of.

    Args:
        data: ``Data`` or ``HeteroData``.
        node_type: the type; None where it is one unnamed type.
        edge_index: the edges by type, unless they are to be read from the data.
    """
    is_typed = hasattr(data, "node_types")
    if not is_typed or node_type in data.node_types:  # else the data would have it from now on
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Unable to accurately infer 'num_nodes'")
            count = (data[node_type] if is_typed else data).num_nodes
        if count is not None or not is_typed:
            return int(count or 0)
    if edge_index is None:
        edge_index = {key: pair for key, store in data.edge_items() if (pair := edges_of(store)) is not None}
    ends = [pair[end] for key, pair in edge_index.items() for end in (0, 1) if key[2 * end] == node_type]
    return max((int(ids.max()) + 1 for ids in ends if ids.numel()), default=0)


def _stores(data: Any) -> Iterator[tuple[Any, Any]]:
    """The storages of a PyG object by their type; that of the whole graph by None."""
    yield None, data.stores[0]
    if hasattr(data, "node_types"):
        yield from data.node_items()
        yield from data.edge_items()


def _rows(data: Any, store: Any, name: str, value: Any) -> torch.Tensor:
    """One row for each node or edge; PyG counts some of them along another dimension than the first."""
    if not isinstance(value, (torch.Tensor, np.ndarray, list, tuple)):
        got = type(value).__name__  # such as a TensorFrame
        raise InvalidArgumentError(f"data.{name}: expected a tensor or an array, got {got}{_CHOOSE}")
    try:
        tensor: torch.Tensor = convert_to_tensor(value, name=f"data.{name}")
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error}{_CHOOSE}") from error
    dim = data.__cat_dim__(name, value, store)
    return tensor.movedim(dim, 0) if isinstance(dim, int) else tensor

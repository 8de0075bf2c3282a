"""The names of ``graphlearn_torch.loader``."""

from __future__ import annotations

from . import link_loader, link_neighbor_loader, neighbor_loader, node_loader, subgraph_loader, transform
from .link_loader import LinkLoader, get_edge_label_index
from .link_neighbor_loader import LinkNeighborLoader
from .neighbor_loader import NeighborLoader
from .node_loader import NodeLoader
from .subgraph_loader import SubGraphLoader
from .transform import to_data, to_hetero_data

__all__ = [
    "LinkLoader",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NodeLoader",
    "SubGraphLoader",
    "get_edge_label_index",
    "link_loader",
    "link_neighbor_loader",
    "neighbor_loader",
    "node_loader",
    "subgraph_loader",
    "to_data",
    "to_hetero_data",
    "transform",
]

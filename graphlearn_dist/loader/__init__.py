"""What a training loop holds: PyG objects out."""

from ..sampler.device.padding import StaticShapes
from .captured_step import CapturedStep
from .hgt_loader import HGTLoader
from .hotness import count_nodes
from .link_loader import LinkLoader, get_edge_label_index
from .link_neighbor_loader import LinkNeighborLoader
from .neighbor_loader import NeighborLoader
from .node_loader import NodeLoader
from .resume import merge_states
from .subgraph_loader import SubGraphLoader
from .transform import to_data, to_hetero_data, to_pyg

__all__ = [
    "CapturedStep",
    "HGTLoader",
    "LinkLoader",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NodeLoader",
    "StaticShapes",
    "SubGraphLoader",
    "count_nodes",
    "get_edge_label_index",
    "merge_states",
    "to_data",
    "to_hetero_data",
    "to_pyg",
]

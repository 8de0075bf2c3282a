"""The names of ``graphlearn_torch.loader``, with those that its modules import."""

from __future__ import annotations

from ..data.dataset import Dataset
from ..sampler.base import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from ..sampler.neighbor_sampler import NeighborSampler
from ..typing import EdgeType, InputEdges, InputNodes, NodeType, reverse_edge_type
from ..utils.tensor import convert_to_tensor
from . import link_loader, link_neighbor_loader, neighbor_loader, node_loader, subgraph_loader, transform
from .link_loader import LinkLoader, get_edge_label_index
from .link_neighbor_loader import LinkNeighborLoader
from .neighbor_loader import NeighborLoader
from .node_loader import NodeLoader
from .subgraph_loader import SubGraphLoader
from .transform import to_data, to_hetero_data

__all__ = [
    "BaseSampler",
    "Dataset",
    "EdgeSamplerInput",
    "EdgeType",
    "HeteroSamplerOutput",
    "InputEdges",
    "InputNodes",
    "LinkLoader",
    "LinkNeighborLoader",
    "NegativeSampling",
    "NeighborLoader",
    "NeighborSampler",
    "NodeLoader",
    "NodeSamplerInput",
    "NodeType",
    "SamplerOutput",
    "SubGraphLoader",
    "convert_to_tensor",
    "get_edge_label_index",
    "link_loader",
    "link_neighbor_loader",
    "neighbor_loader",
    "node_loader",
    "reverse_edge_type",
    "subgraph_loader",
    "to_data",
    "to_hetero_data",
    "transform",
]

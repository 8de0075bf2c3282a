"""The names of ``graphlearn_torch.typing``."""

from __future__ import annotations

from ..typing import (
    EDGE_TYPE_STR_SPLIT,
    EdgeIndexTensor,
    EdgeType,
    FeaturePartitionData,
    GraphPartitionData,
    HeteroFeaturePartitionData,
    HeteroGraphPartitionData,
    InputEdges,
    InputNodes,
    NodeIndex,
    NodeLabel,
    NodeType,
    NumNeighbors,
    Seeds,
    Split,
    TensorDataType,
    as_str,
    reverse_edge_type,
)

__all__ = [
    "EDGE_TYPE_STR_SPLIT",
    "EdgeIndexTensor",
    "EdgeType",
    "FeaturePartitionData",
    "GraphPartitionData",
    "HeteroFeaturePartitionData",
    "HeteroGraphPartitionData",
    "InputEdges",
    "InputNodes",
    "NodeIndex",
    "NodeLabel",
    "NodeType",
    "NumNeighbors",
    "Seeds",
    "Split",
    "TensorDataType",
    "as_str",
    "reverse_edge_type",
]

"""The module tree of GraphLearn-for-PyTorch (``graphlearn_torch``), with its behavior, over this package.

A program for it imports ``graphlearn_dist.glt as glt`` and stays as it is; ``docs/from_glt.md`` says what differs.
"""

from __future__ import annotations

from . import channel, data, distributed, loader, partition, sampler, typing, utils
from .typing import (
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
    "channel",
    "data",
    "distributed",
    "loader",
    "partition",
    "reverse_edge_type",
    "sampler",
    "typing",
    "utils",
]

"""The names of ``graphlearn_torch.sampler``, with those that its modules import."""

from __future__ import annotations

from ..data.graph import Graph
from ..typing import EdgeType, NodeType, Split, reverse_edge_type
from ..utils.common import count_dict, merge_dict
from ..utils.mixin import CastMixin
from ..utils.tensor import id2idx
from . import base, negative_sampler, neighbor_sampler
from .base import (
    BaseSampler,
    EdgeIndex,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NegativeSamplingMode,
    NeighborOutput,
    NodeSamplerInput,
    RemoteNodePathSamplerInput,
    RemoteNodeSplitSamplerInput,
    RemoteSamplerInput,
    SamplerOutput,
    SamplingConfig,
    SamplingType,
)
from .negative_sampler import RandomNegativeSampler
from .neighbor_sampler import NeighborSampler

__all__ = [
    "BaseSampler",
    "CastMixin",
    "EdgeIndex",
    "EdgeSamplerInput",
    "EdgeType",
    "Graph",
    "HeteroSamplerOutput",
    "NegativeSampling",
    "NegativeSamplingMode",
    "NeighborOutput",
    "NeighborSampler",
    "NodeSamplerInput",
    "NodeType",
    "RandomNegativeSampler",
    "RemoteNodePathSamplerInput",
    "RemoteNodeSplitSamplerInput",
    "RemoteSamplerInput",
    "SamplerOutput",
    "SamplingConfig",
    "SamplingType",
    "Split",
    "base",
    "count_dict",
    "id2idx",
    "merge_dict",
    "negative_sampler",
    "neighbor_sampler",
    "reverse_edge_type",
]

"""The names of ``graphlearn_torch.sampler``."""

from __future__ import annotations

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
    "EdgeIndex",
    "EdgeSamplerInput",
    "HeteroSamplerOutput",
    "NegativeSampling",
    "NegativeSamplingMode",
    "NeighborOutput",
    "NeighborSampler",
    "NodeSamplerInput",
    "RandomNegativeSampler",
    "RemoteNodePathSamplerInput",
    "RemoteNodeSplitSamplerInput",
    "RemoteSamplerInput",
    "SamplerOutput",
    "SamplingConfig",
    "SamplingType",
    "base",
    "negative_sampler",
    "neighbor_sampler",
]

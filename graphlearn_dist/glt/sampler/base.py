"""The names of ``graphlearn_torch.sampler.base``."""

from __future__ import annotations

from ...sampler.base import (
    BaseSampler,
    EdgeSamplerInput,
    NodeSamplerInput,
    RemoteNodePathSamplerInput,
    RemoteNodeSplitSamplerInput,
    RemoteSamplerInput,
    SamplingType,
)
from ...sampler.links.negative_sampling import NegativeSamplingMode
from ...sampler.outputs import EdgeIndex, HeteroSamplerOutput, NeighborOutput, SamplerOutput
from .own_defaults import NegativeSampling, SamplingConfig

__all__ = [
    "BaseSampler",
    "EdgeIndex",
    "EdgeSamplerInput",
    "HeteroSamplerOutput",
    "NegativeSampling",
    "NegativeSamplingMode",
    "NeighborOutput",
    "NodeSamplerInput",
    "RemoteNodePathSamplerInput",
    "RemoteNodeSplitSamplerInput",
    "RemoteSamplerInput",
    "SamplerOutput",
    "SamplingConfig",
    "SamplingType",
]

"""Samplers over graphs held in this process."""

from .base import (
    BaseSampler,
    EdgeSamplerInput,
    NegativeSampling,
    NegativeSamplingMode,
    NodeSamplerInput,
    RemoteNodePathSamplerInput,
    RemoteNodeSplitSamplerInput,
    RemoteSamplerInput,
    SamplingConfig,
    SamplingType,
)
from .epochs.schedule import SeedSchedule
from .importance import ImportanceSettings
from .negative_sampler import RandomNegativeSampler
from .neighbor_sampler import NeighborSampler
from .outputs import EdgeIndex, HeteroSamplerOutput, NeighborOutput, SamplerOutput
from .plan import SamplingPlan, build_plan
from .ppr import personalized_pagerank
from .walks import WalkSettings

__all__ = [
    "BaseSampler",
    "EdgeIndex",
    "EdgeSamplerInput",
    "HeteroSamplerOutput",
    "ImportanceSettings",
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
    "SamplingPlan",
    "SamplingType",
    "SeedSchedule",
    "WalkSettings",
    "build_plan",
    "personalized_pagerank",
]

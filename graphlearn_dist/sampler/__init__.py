"""Samplers over graphs held in this process."""

from .base import (
    BaseSampler,
    EdgeIndex,
    NeighborOutput,
    NodeSamplerInput,
    RemoteNodeSplitSamplerInput,
    RemoteSamplerInput,
    SamplerOutput,
    SamplingConfig,
    SamplingType,
)
from .neighbor_sampler import NeighborSampler, SubgraphSampler
from .plan import SamplingPlan, build_plan
from .schedule import SeedSchedule

__all__ = [
    "BaseSampler",
    "EdgeIndex",
    "NeighborOutput",
    "NeighborSampler",
    "NodeSamplerInput",
    "RemoteNodeSplitSamplerInput",
    "RemoteSamplerInput",
    "SamplerOutput",
    "SamplingConfig",
    "SamplingPlan",
    "SamplingType",
    "SeedSchedule",
    "SubgraphSampler",
    "build_plan",
]

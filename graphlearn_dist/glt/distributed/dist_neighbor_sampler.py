"""The names of ``graphlearn_torch.distributed.dist_neighbor_sampler``."""

from __future__ import annotations

from ...distributed.dist_neighbor_sampler import (
    DistNeighborSampler,
    PartialNeighborOutput,
    RpcSamplingCallee,
    RpcSubGraphCallee,
)

__all__ = [
    "DistNeighborSampler",
    "PartialNeighborOutput",
    "RpcSamplingCallee",
    "RpcSubGraphCallee",
]

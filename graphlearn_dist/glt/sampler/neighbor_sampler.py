"""The names of ``graphlearn_torch.sampler.neighbor_sampler``."""

from __future__ import annotations

from ...sampler.neighbor_sampler import NeighborSampler

__all__ = [
    "NeighborSampler",
]

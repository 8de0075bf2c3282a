"""The names of ``graphlearn_torch.sampler.negative_sampler``."""

from __future__ import annotations

from ...sampler.negative_sampler import RandomNegativeSampler

__all__ = [
    "RandomNegativeSampler",
]

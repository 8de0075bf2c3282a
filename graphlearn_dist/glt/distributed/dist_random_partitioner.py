"""The names of ``graphlearn_torch.distributed.dist_random_partitioner``."""

from __future__ import annotations

from ...distributed.dist_random_partitioner import DistRandomPartitioner

__all__ = [
    "DistRandomPartitioner",
]

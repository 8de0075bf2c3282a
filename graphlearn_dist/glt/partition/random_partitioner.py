"""The names of ``graphlearn_torch.partition.random_partitioner``."""

from __future__ import annotations

from ...partition.partitioner import RandomPartitioner

__all__ = [
    "RandomPartitioner",
]

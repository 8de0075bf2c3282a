"""The names of ``graphlearn_torch.distributed.dist_neighbor_loader``."""

from __future__ import annotations

from ...distributed.dist_neighbor_loader import DistNeighborLoader

__all__ = [
    "DistNeighborLoader",
]

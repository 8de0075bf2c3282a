"""The names of ``graphlearn_torch.distributed.dist_link_neighbor_loader``."""

from __future__ import annotations

from ...distributed.dist_link_neighbor_loader import DistLinkNeighborLoader

__all__ = [
    "DistLinkNeighborLoader",
]

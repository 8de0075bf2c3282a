"""The names of ``graphlearn_torch.loader.link_neighbor_loader``."""

from __future__ import annotations

from ...loader.link_neighbor_loader import LinkNeighborLoader

__all__ = [
    "LinkNeighborLoader",
]

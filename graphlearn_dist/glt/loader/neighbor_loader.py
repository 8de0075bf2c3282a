"""The names of ``graphlearn_torch.loader.neighbor_loader``."""

from __future__ import annotations

from ...loader.neighbor_loader import NeighborLoader

__all__ = [
    "NeighborLoader",
]

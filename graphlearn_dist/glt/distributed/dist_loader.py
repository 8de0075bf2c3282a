"""The names of ``graphlearn_torch.distributed.dist_loader``."""

from __future__ import annotations

from ...distributed.dist_loader import DistLoader

__all__ = [
    "DistLoader",
]

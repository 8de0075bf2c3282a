"""The names of ``graphlearn_torch.distributed.dist_graph``."""

from __future__ import annotations

from ...distributed.dist_graph import DistGraph

__all__ = [
    "DistGraph",
]

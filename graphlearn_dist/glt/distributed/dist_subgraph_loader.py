"""The names of ``graphlearn_torch.distributed.dist_subgraph_loader``."""

from __future__ import annotations

from ...distributed.dist_subgraph_loader import DistSubGraphLoader

__all__ = [
    "DistSubGraphLoader",
]

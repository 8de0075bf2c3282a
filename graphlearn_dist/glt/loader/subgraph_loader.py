"""The names of ``graphlearn_torch.loader.subgraph_loader``."""

from __future__ import annotations

from ...loader.subgraph_loader import SubGraphLoader

__all__ = [
    "SubGraphLoader",
]

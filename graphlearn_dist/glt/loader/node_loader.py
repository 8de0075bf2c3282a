"""The names of ``graphlearn_torch.loader.node_loader``."""

from __future__ import annotations

from ...loader.node_loader import NodeLoader

__all__ = [
    "NodeLoader",
]

"""The names of ``graphlearn_torch.loader.link_loader``."""

from __future__ import annotations

from ...loader.link_loader import LinkLoader
from ...sampler.inputs import get_edge_label_index

__all__ = [
    "LinkLoader",
    "get_edge_label_index",
]

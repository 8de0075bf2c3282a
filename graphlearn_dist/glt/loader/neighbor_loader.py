"""``NeighborLoader`` as ``graphlearn_torch.loader`` has it."""

from __future__ import annotations

from ...loader import neighbor_loader
from .node_loader import NodeLoader

__all__ = [
    "NeighborLoader",
]


class NeighborLoader(neighbor_loader.NeighborLoader, NodeLoader):
    """``graphlearn_dist.loader.NeighborLoader`` with batches in the form of GraphLearn-for-PyTorch.

    Arguments are the same.
    """

"""``DistNeighborLoader`` as ``graphlearn_torch.distributed`` has it."""

from __future__ import annotations

from ...distributed import dist_neighbor_loader
from .dist_loader import DistLoader

__all__ = [
    "DistNeighborLoader",
]


class DistNeighborLoader(dist_neighbor_loader.DistNeighborLoader, DistLoader):
    """``graphlearn_dist.distributed.DistNeighborLoader`` with batches in the form of GraphLearn-for-PyTorch.

    Arguments are the same; see ``glt.distributed.DistLoader`` for what differs.
    """

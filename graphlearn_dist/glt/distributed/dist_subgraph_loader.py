"""``DistSubGraphLoader`` as ``graphlearn_torch.distributed`` has it."""

from __future__ import annotations

from ...distributed import dist_subgraph_loader
from .dist_loader import DistLoader

__all__ = [
    "DistSubGraphLoader",
]


class DistSubGraphLoader(dist_subgraph_loader.DistSubGraphLoader, DistLoader):
    """``graphlearn_dist.distributed.DistSubGraphLoader`` with batches in the form of GraphLearn-for-PyTorch.

    Nodes are in the order of their ids. Arguments are the same; see ``glt.distributed.DistLoader`` for what differs.
    """

"""``SubGraphLoader`` as ``graphlearn_torch.loader`` has it."""

from __future__ import annotations

from ...loader import subgraph_loader
from .node_loader import NodeLoader

__all__ = [
    "SubGraphLoader",
]


class SubGraphLoader(subgraph_loader.SubGraphLoader, NodeLoader):
    """``graphlearn_dist.loader.SubGraphLoader`` with batches in the form of GraphLearn-for-PyTorch.

    Nodes are in the order of their ids. Arguments are the same.
    """

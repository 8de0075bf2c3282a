"""``NodeLoader`` as ``graphlearn_torch.loader`` has it."""

from __future__ import annotations

from ...loader import node_loader
from .local_loader import LocalLoader

__all__ = [
    "NodeLoader",
]


class NodeLoader(node_loader.NodeLoader, LocalLoader):
    """``graphlearn_dist.loader.NodeLoader`` with batches in the form of GraphLearn-for-PyTorch.

    Arguments are the same.
    """

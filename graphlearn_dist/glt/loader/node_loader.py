"""``NodeLoader`` as ``graphlearn_torch.loader`` has it."""

from __future__ import annotations

from typing import Any

from ...loader import node_loader
from .local_loader import LocalLoader

__all__ = [
    "NodeLoader",
]


class NodeLoader(node_loader.NodeLoader, LocalLoader):
    """``graphlearn_dist.loader.NodeLoader`` with batches in the form of GraphLearn-for-PyTorch.

    Arguments are the same.
    """

    @property
    def sampler(self) -> Any:
        """The sampler of neighbors; torch's loaders call the order of the seeds so."""
        return self.node_sampler

    @property
    def as_pyg_v1(self) -> bool:
        """Whether batches are (batch size, ids, layers)."""
        return self._as_pyg_v1

"""``SubGraphLoader`` as ``graphlearn_torch.loader`` has it."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidArgumentError
from ...loader import subgraph_loader
from .node_loader import NodeLoader

__all__ = [
    "SubGraphLoader",
]


class SubGraphLoader(subgraph_loader.SubGraphLoader, NodeLoader):
    """``graphlearn_dist.loader.SubGraphLoader`` with batches in the form of GraphLearn-for-PyTorch.

    Nodes are in the order of their ids. Arguments are the same, but ``edge_format``: these batches have ``edge_index``.
    """

    def __init__(self, *args: Any, edge_format: str = "edge_index", **kwargs: Any) -> None:
        if edge_format != "edge_index":
            raise InvalidArgumentError(
                f"edge_format: expected 'edge_index' in this form of batches, got {edge_format!r}"
            )
        super().__init__(*args, **kwargs)

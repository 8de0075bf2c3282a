"""How often nodes are looked up, counted in batches that are made for it."""

from __future__ import annotations

from typing import Any

import torch

from ..data.schema import bare
from ..errors import InvalidArgumentError
from ..utils.shown import shown
from .local_loader import LocalLoader


def count_nodes(loader: LocalLoader, num_batches: int | None = None, *, epoch: int = 0) -> Any:
    """In how many batches of an epoch each node is: GNNLab's pre-sampling (Yang et al., EuroSys 2022, section 6).

    The numbers are a ``hotness`` for ``Dataset.init_node_features``, truer than degrees where seeds are few or lie
    together. Features are not looked up, and the loader stays where it is.

    Args:
        loader: a loader of the batches that are going to be trained on.
        num_batches: the first so many batches of the epoch; None: all.
        epoch: whose batches.

    Returns:
        int64 ``[num_nodes]``, or a dict of such by node type. Disjoint batches count a node once a tree.

    Raises:
        InvalidArgumentError: ``num_batches`` is not between 1 and the batches of an epoch.
    """
    schema, length = loader.data.schema, loader.batches.schedule.num_batches
    if num_batches is not None and not 1 <= num_batches <= length:
        raise InvalidArgumentError(f"num_batches: expected 1 to {length}, got {shown(num_batches)}")
    counts = [torch.zeros(count, dtype=torch.int64) for count in schema.num_nodes]
    for index in range(length if num_batches is None else num_batches):
        for count, nodes in zip(counts, loader.batches.sample(epoch, index).subgraph.nodes, strict=True):
            count.index_add_(0, nodes.cpu(), torch.ones(nodes.numel(), dtype=torch.int64))
    return bare(dict(zip(schema.node_types, counts, strict=True)))

"""The names of ``graphlearn_torch.partition.random_partitioner``."""

from __future__ import annotations

from ...partition import RandomPartitioner as CoreRandomPartitioner
from .defaults import FLOAT32, with_defaults


class RandomPartitioner(CoreRandomPartitioner):
    """See ``graphlearn_dist.partition.RandomPartitioner``."""

    __init__ = with_defaults(CoreRandomPartitioner.__init__, FLOAT32)


__all__ = [
    "RandomPartitioner",
]

"""The names of ``graphlearn_torch.partition.random_partitioner``."""

from __future__ import annotations

from ...partition import RandomPartitioner as CoreRandomPartitioner
from .defaults import PartitionerAttributes, partitioner_init


class RandomPartitioner(PartitionerAttributes, CoreRandomPartitioner):
    """See ``graphlearn_dist.partition.RandomPartitioner``."""

    __init__ = partitioner_init(CoreRandomPartitioner.__init__)


__all__ = [
    "RandomPartitioner",
]

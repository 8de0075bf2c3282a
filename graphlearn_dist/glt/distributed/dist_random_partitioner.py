"""The names of ``graphlearn_torch.distributed.dist_random_partitioner``."""

from __future__ import annotations

from ...distributed.dist_random_partitioner import DistRandomPartitioner as CoreDistRandomPartitioner
from ..partition.defaults import FLOAT32, with_defaults


class DistRandomPartitioner(CoreDistRandomPartitioner):
    """See ``graphlearn_dist.distributed.DistRandomPartitioner``."""

    __init__ = with_defaults(CoreDistRandomPartitioner.__init__, FLOAT32)


__all__ = [
    "DistRandomPartitioner",
]

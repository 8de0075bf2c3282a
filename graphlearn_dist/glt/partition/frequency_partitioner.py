"""The names of ``graphlearn_torch.partition.frequency_partitioner``."""

from __future__ import annotations

from ...partition import FrequencyPartitioner as CoreFrequencyPartitioner
from .defaults import FLOAT32, with_defaults


class FrequencyPartitioner(CoreFrequencyPartitioner):
    """See ``graphlearn_dist.partition.FrequencyPartitioner``."""

    __init__ = with_defaults(CoreFrequencyPartitioner.__init__, FLOAT32)


__all__ = [
    "FrequencyPartitioner",
]

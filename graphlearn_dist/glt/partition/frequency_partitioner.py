"""The names of ``graphlearn_torch.partition.frequency_partitioner``."""

from __future__ import annotations

from ...partition import FrequencyPartitioner as CoreFrequencyPartitioner
from .defaults import PartitionerAttributes, partitioner_init


class FrequencyPartitioner(PartitionerAttributes, CoreFrequencyPartitioner):
    """See ``graphlearn_dist.partition.FrequencyPartitioner``."""

    __init__ = partitioner_init(CoreFrequencyPartitioner.__init__)


__all__ = [
    "FrequencyPartitioner",
]

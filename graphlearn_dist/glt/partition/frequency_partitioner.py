"""The names of ``graphlearn_torch.partition.frequency_partitioner``."""

from __future__ import annotations

from ...partition.frequency_partitioner import FrequencyPartitioner

__all__ = [
    "FrequencyPartitioner",
]

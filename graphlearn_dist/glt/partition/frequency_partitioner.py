"""The names of ``graphlearn_torch.partition.frequency_partitioner``."""

from __future__ import annotations

from typing import Any

from ...data.schema import bare
from ...partition import FrequencyPartitioner as CoreFrequencyPartitioner
from .defaults import PartitionerAttributes, partitioner_init


class FrequencyPartitioner(PartitionerAttributes, CoreFrequencyPartitioner):
    """See ``graphlearn_dist.partition.FrequencyPartitioner``; a budget or share of 0 is none that was given."""

    __init__ = partitioner_init(CoreFrequencyPartitioner.__init__)

    def _limits(self, name: str, given: Any, largest: float) -> dict[Any, float]:
        return {key: limit for key, limit in super()._limits(name, given, largest).items() if limit}

    @property
    def probs(self) -> Any:
        """For each partition how likely each node is in its batches (by node type)."""
        return bare({key: list(of_parts) for key, of_parts in self._probs.items()})

    @property
    def cache_ratio(self) -> Any:
        """The share of all nodes that each partition caches (by node type); None where it was not given."""
        return bare(self._ratios)

    @property
    def cache_memory_budget(self) -> Any:
        """Bytes of the rows that each partition caches (by node type); None where they were not given."""
        return bare(self._budgets)


__all__ = [
    "FrequencyPartitioner",
]

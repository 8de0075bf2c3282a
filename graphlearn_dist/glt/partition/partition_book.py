"""The names of ``graphlearn_torch.partition.partition_book``."""

from __future__ import annotations

import torch

from ...partition import partition_book
from ...partition.partition_book import GLTPartitionBook, OffsetId2Index


class RangePartitionBook(partition_book.RangePartitionBook):
    """Contiguous ranges of ids, see ``graphlearn_dist.partition.RangePartitionBook``."""

    @property
    def partition_bounds(self) -> torch.Tensor:
        """int64 ``[num_partitions]``: where each partition ends."""
        return self._bounds[1:]


__all__ = [
    "GLTPartitionBook",
    "OffsetId2Index",
    "RangePartitionBook",
]

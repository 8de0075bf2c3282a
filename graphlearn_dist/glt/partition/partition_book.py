"""The names of ``graphlearn_torch.partition.partition_book``."""

from __future__ import annotations

from ...partition.partition_book import GLTPartitionBook, OffsetId2Index, RangePartitionBook

__all__ = [
    "GLTPartitionBook",
    "OffsetId2Index",
    "RangePartitionBook",
]

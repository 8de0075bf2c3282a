"""Partition books, partitioners, and the directory they write."""

from .base import PartitionBook
from .layout import GraphArrays, PartitionArrays, PartitionLayout, load_partition, load_partition_layout
from .partition_book import (
    GLTPartitionBook,
    OffsetId2Index,
    PermutedPartitionBook,
    RangePartitionBook,
    TablePartitionBook,
)
from .partitioner import PartitionerBase, RandomPartitioner, RangePartitioner, TablePartitioner
from .sources import partition_file, partition_pyg, partition_source, verify

__all__ = [
    "GLTPartitionBook",
    "GraphArrays",
    "OffsetId2Index",
    "PartitionArrays",
    "PartitionBook",
    "PartitionLayout",
    "PartitionerBase",
    "PermutedPartitionBook",
    "RandomPartitioner",
    "RangePartitionBook",
    "RangePartitioner",
    "TablePartitionBook",
    "TablePartitioner",
    "load_partition",
    "load_partition_layout",
    "partition_file",
    "partition_pyg",
    "partition_source",
    "verify",
]

"""The names of ``graphlearn_torch.partition``."""

from __future__ import annotations

from . import base, frequency_partitioner, partition_book, random_partitioner
from .base import (
    HeteroEdgePartitionDict,
    HeteroNodePartitionDict,
    PartitionBook,
    PartitionerBase,
    build_partition_feature,
    cat_feature_cache,
    load_feature_partition_data,
    load_graph_partition_data,
    load_partition,
    save_edge_pb,
    save_feature_partition,
    save_feature_partition_cache,
    save_feature_partition_chunk,
    save_graph_cache,
    save_graph_partition,
    save_meta,
    save_node_pb,
)
from .frequency_partitioner import FrequencyPartitioner
from .partition_book import GLTPartitionBook, OffsetId2Index, RangePartitionBook
from .random_partitioner import RandomPartitioner

__all__ = [
    "FrequencyPartitioner",
    "GLTPartitionBook",
    "HeteroEdgePartitionDict",
    "HeteroNodePartitionDict",
    "OffsetId2Index",
    "PartitionBook",
    "PartitionerBase",
    "RandomPartitioner",
    "RangePartitionBook",
    "base",
    "build_partition_feature",
    "cat_feature_cache",
    "frequency_partitioner",
    "load_feature_partition_data",
    "load_graph_partition_data",
    "load_partition",
    "partition_book",
    "random_partitioner",
    "save_edge_pb",
    "save_feature_partition",
    "save_feature_partition_cache",
    "save_feature_partition_chunk",
    "save_graph_cache",
    "save_graph_partition",
    "save_meta",
    "save_node_pb",
]

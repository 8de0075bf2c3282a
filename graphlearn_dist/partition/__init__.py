"""Partition books, partitioners, and the directory they write."""

from .base import (
    PartitionBook,
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
    save_node_feat_pb,
    save_node_pb,
)
from .edge_book import OwnedEdgesBook
from .frequency_partitioner import FrequencyPartitioner
from .layout import CachedRows, GraphArrays, PartitionArrays, PartitionLayout, load_partition_layout
from .node_order import save_node_order
from .ordering.quality import PartitionQuality, partition_quality
from .ordering.repartition import Repartitioned, repartition
from .ordering.zone_partitioner import KaMinParPartitioner, LDGPartitioner, ZonePartitioner
from .part_numbers import number_parts
from .partition_book import (
    GLTPartitionBook,
    OffsetId2Index,
    PermutedPartitionBook,
    RangePartitionBook,
    TablePartitionBook,
    ZonePartitionBook,
)
from .partitioner import PartitionerBase, RandomPartitioner, RangePartitioner, TablePartitioner
from .sources import describe, partition_file, partition_pyg, partition_source, verify

__all__ = [
    "CachedRows",
    "FrequencyPartitioner",
    "GLTPartitionBook",
    "GraphArrays",
    "KaMinParPartitioner",
    "LDGPartitioner",
    "OffsetId2Index",
    "OwnedEdgesBook",
    "PartitionArrays",
    "PartitionBook",
    "PartitionLayout",
    "PartitionQuality",
    "PartitionerBase",
    "PermutedPartitionBook",
    "RandomPartitioner",
    "RangePartitionBook",
    "RangePartitioner",
    "Repartitioned",
    "TablePartitionBook",
    "TablePartitioner",
    "ZonePartitionBook",
    "ZonePartitioner",
    "build_partition_feature",
    "cat_feature_cache",
    "describe",
    "load_feature_partition_data",
    "load_graph_partition_data",
    "load_partition",
    "load_partition_layout",
    "number_parts",
    "partition_file",
    "partition_pyg",
    "partition_quality",
    "partition_source",
    "repartition",
    "save_edge_pb",
    "save_feature_partition",
    "save_feature_partition_cache",
    "save_feature_partition_chunk",
    "save_graph_cache",
    "save_graph_partition",
    "save_meta",
    "save_node_feat_pb",
    "save_node_order",
    "save_node_pb",
    "verify",
]

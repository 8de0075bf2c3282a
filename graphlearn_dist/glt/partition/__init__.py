"""The names of ``graphlearn_torch.partition``, with those that its modules import."""

from __future__ import annotations

from ..typing import EdgeType, FeaturePartitionData, GraphPartitionData, NodeType, as_str
from ..utils.common import ensure_dir
from ..utils.tensor import convert_to_tensor, id2idx
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
    "EdgeType",
    "FeaturePartitionData",
    "FrequencyPartitioner",
    "GLTPartitionBook",
    "GraphPartitionData",
    "HeteroEdgePartitionDict",
    "HeteroNodePartitionDict",
    "NodeType",
    "OffsetId2Index",
    "PartitionBook",
    "PartitionerBase",
    "RandomPartitioner",
    "RangePartitionBook",
    "as_str",
    "base",
    "build_partition_feature",
    "cat_feature_cache",
    "convert_to_tensor",
    "ensure_dir",
    "frequency_partitioner",
    "id2idx",
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

"""GraphLearn-for-PyTorch's place for books, the base of partitioners, and what saves and loads partitions."""

from .book_base import PartitionBook, check_partition_idx
from .loading import cat_feature_cache, load_feature_partition_data, load_graph_partition_data, load_partition
from .partitioner import PartitionerBase
from .pieces import (
    build_partition_feature,
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

__all__ = [
    "PartitionBook",
    "PartitionerBase",
    "build_partition_feature",
    "cat_feature_cache",
    "check_partition_idx",
    "load_feature_partition_data",
    "load_graph_partition_data",
    "load_partition",
    "save_edge_pb",
    "save_feature_partition",
    "save_feature_partition_cache",
    "save_feature_partition_chunk",
    "save_graph_cache",
    "save_graph_partition",
    "save_meta",
    "save_node_feat_pb",
    "save_node_pb",
]

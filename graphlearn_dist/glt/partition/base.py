"""The names of ``graphlearn_torch.partition.base``."""

from __future__ import annotations

from typing import TypeAlias

from ...partition.base import (
    build_partition_feature,
    save_edge_pb,
    save_feature_partition,
    save_feature_partition_cache,
    save_feature_partition_chunk,
    save_graph_cache,
    save_graph_partition,
    save_meta,
    save_node_pb,
)
from ...partition.loading import (
    cat_feature_cache,
    load_feature_partition_data,
    load_graph_partition_data,
    load_partition,
)
from ...partition.partition_book import PartitionBook
from ...partition.partitioner import PartitionerBase
from ...typing import EdgeType, NodeType

HeteroNodePartitionDict: TypeAlias = dict[NodeType, PartitionBook]
HeteroEdgePartitionDict: TypeAlias = dict[EdgeType, PartitionBook]

__all__ = [
    "HeteroEdgePartitionDict",
    "HeteroNodePartitionDict",
    "PartitionBook",
    "PartitionerBase",
    "build_partition_feature",
    "cat_feature_cache",
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
    "save_node_pb",
]

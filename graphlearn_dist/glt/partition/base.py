"""The names of ``graphlearn_torch.partition.base``."""

from __future__ import annotations

from typing import TypeAlias

from ...partition.base import build_partition_feature as build_feature
from ...partition.base import (
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
from ...partition.partitioner import PartitionerBase as CorePartitionerBase
from ...typing import EdgeType, NodeType
from .defaults import FLOAT32, PartitionerAttributes, partitioner_init, with_defaults

HeteroNodePartitionDict: TypeAlias = dict[NodeType, PartitionBook]
HeteroEdgePartitionDict: TypeAlias = dict[EdgeType, PartitionBook]


class PartitionerBase(PartitionerAttributes, CorePartitionerBase):
    """The base of a program's own partitioners, see ``graphlearn_dist.partition.PartitionerBase``."""

    __init__ = partitioner_init(CorePartitionerBase.__init__)


build_partition_feature = with_defaults(build_feature, FLOAT32)

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

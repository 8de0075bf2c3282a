"""The names of ``graphlearn_torch.data``, with those that its modules import."""

from __future__ import annotations

from ...partition.partition_book import PartitionBook
from ..typing import EdgeType, NodeType
from ..utils.tensor import convert_to_tensor, share_memory, squeeze
from ..utils.topo import coo_to_csc, coo_to_csr, ptr2ind
from . import dataset, feature, graph, reorder, table_dataset, unified_tensor
from .dataset import Dataset, random_split, rebuild_dataset, reduce_dataset
from .feature import DeviceGroup, Feature, rebuild_feature, reduce_feature
from .graph import CSRTopo, Graph, Topology, rebuild_graph, reduce_graph
from .reorder import sort_by_in_degree
from .table_dataset import TableDataset, rebuild_table_dataset, reduce_table_dataset
from .unified_tensor import UnifiedTensor

__all__ = [
    "CSRTopo",
    "Dataset",
    "DeviceGroup",
    "EdgeType",
    "Feature",
    "Graph",
    "NodeType",
    "PartitionBook",
    "TableDataset",
    "Topology",
    "UnifiedTensor",
    "convert_to_tensor",
    "coo_to_csc",
    "coo_to_csr",
    "dataset",
    "feature",
    "graph",
    "ptr2ind",
    "random_split",
    "rebuild_dataset",
    "rebuild_feature",
    "rebuild_graph",
    "rebuild_table_dataset",
    "reduce_dataset",
    "reduce_feature",
    "reduce_graph",
    "reduce_table_dataset",
    "reorder",
    "share_memory",
    "sort_by_in_degree",
    "squeeze",
    "table_dataset",
    "unified_tensor",
]

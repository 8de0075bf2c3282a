"""The names of ``graphlearn_torch.data``."""

from __future__ import annotations

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
    "Feature",
    "Graph",
    "TableDataset",
    "Topology",
    "UnifiedTensor",
    "dataset",
    "feature",
    "graph",
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
    "sort_by_in_degree",
    "table_dataset",
    "unified_tensor",
]

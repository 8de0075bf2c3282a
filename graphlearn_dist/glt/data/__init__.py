"""The names of ``graphlearn_torch.data``."""

from __future__ import annotations

from . import dataset, feature, graph, reorder, unified_tensor
from .dataset import Dataset, random_split, rebuild_dataset, reduce_dataset
from .feature import DeviceGroup, Feature, rebuild_feature, reduce_feature
from .graph import Graph, Topology, rebuild_graph, reduce_graph
from .reorder import sort_by_in_degree
from .unified_tensor import UnifiedTensor

__all__ = [
    "Dataset",
    "DeviceGroup",
    "Feature",
    "Graph",
    "Topology",
    "UnifiedTensor",
    "dataset",
    "feature",
    "graph",
    "random_split",
    "rebuild_dataset",
    "rebuild_feature",
    "rebuild_graph",
    "reduce_dataset",
    "reduce_feature",
    "reduce_graph",
    "reorder",
    "sort_by_in_degree",
    "unified_tensor",
]

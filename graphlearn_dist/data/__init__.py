"""Graphs, features and data sets in memory."""

from .dataset import Dataset
from .device.device_group import DeviceGroup
from .feature import Feature
from .graph import Graph
from .random_split import random_split
from .reorder import sort_by_in_degree
from .schema import GraphSchema
from .sources import GraphSource
from .topology import Topology
from .unified_tensor import UnifiedTensor
from .zone_order import ZoneOrder

__all__ = [
    "Dataset",
    "DeviceGroup",
    "Feature",
    "Graph",
    "GraphSchema",
    "GraphSource",
    "Topology",
    "UnifiedTensor",
    "ZoneOrder",
    "random_split",
    "sort_by_in_degree",
]

"""Graphs, features and data sets in memory."""

from .dataset import Dataset, GraphSchema
from .feature import DeviceGroup, Feature
from .graph import Graph, Topology
from .random_split import random_split
from .unified_tensor import UnifiedTensor

__all__ = ["Dataset", "DeviceGroup", "Feature", "Graph", "GraphSchema", "Topology", "UnifiedTensor", "random_split"]

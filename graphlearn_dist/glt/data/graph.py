"""The names of ``graphlearn_torch.data.graph``."""

from __future__ import annotations

from ...data.graph import Graph, rebuild_graph, reduce_graph
from ...data.topology import Topology

__all__ = [
    "Graph",
    "Topology",
    "rebuild_graph",
    "reduce_graph",
]

"""Distributed graph sampling for GNN training in PyTorch.

Modules are imported when they are first used, so that the command line starts without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (
        channel,
        cluster,
        config,
        data,
        distributed,
        errors,
        glt,
        inference,
        loader,
        metrics,
        partition,
        sampler,
        tables,
        telemetry,
        typing,
        utils,
    )
    from ._C import __version__
    from .core import show_config
    from .distributed import DistEmbedding, SparseAdagrad, SparseAdam, SparseSGD
    from .typing import (
        EDGE_TYPE_STR_SPLIT,
        EdgeIndexTensor,
        EdgeType,
        InputEdges,
        InputNodes,
        NodeIndex,
        NodeLabel,
        NodeType,
        NumNeighbors,
        Seeds,
        Split,
        as_str,
        reverse_edge_type,
    )

_MODULES = (
    "channel",
    "cluster",
    "config",
    "data",
    "distributed",
    "errors",
    "glt",
    "inference",
    "loader",
    "metrics",
    "partition",
    "sampler",
    "tables",
    "telemetry",
    "typing",
    "utils",
)
_OF_TYPING = (
    "EDGE_TYPE_STR_SPLIT",
    "EdgeIndexTensor",
    "EdgeType",
    "InputEdges",
    "InputNodes",
    "NodeIndex",
    "NodeLabel",
    "NodeType",
    "NumNeighbors",
    "Seeds",
    "Split",
    "as_str",
    "reverse_edge_type",
)
_OF_DISTRIBUTED = ("DistEmbedding", "SparseAdagrad", "SparseAdam", "SparseSGD")

__all__ = [
    "EDGE_TYPE_STR_SPLIT",
    "DistEmbedding",
    "EdgeIndexTensor",
    "EdgeType",
    "InputEdges",
    "InputNodes",
    "NodeIndex",
    "NodeLabel",
    "NodeType",
    "NumNeighbors",
    "Seeds",
    "SparseAdagrad",
    "SparseAdam",
    "SparseSGD",
    "Split",
    "__version__",
    "as_str",
    "channel",
    "cluster",
    "config",
    "data",
    "distributed",
    "errors",
    "glt",
    "inference",
    "loader",
    "metrics",
    "partition",
    "reverse_edge_type",
    "sampler",
    "show_config",
    "tables",
    "telemetry",
    "typing",
    "utils",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _OF_TYPING:
        return getattr(importlib.import_module(".typing", __name__), name)
    if name in _OF_DISTRIBUTED:
        return getattr(importlib.import_module(".distributed", __name__), name)
    if name == "__version__":
        return importlib.import_module("._C", __name__).__version__
    if name == "show_config":
        return importlib.import_module(".core", __name__).show_config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

"""Distributed graph sampling for GNN training in PyTorch."""

from . import channel, data, distributed, loader, partition, sampler, typing, utils
from ._C import __version__
from .core import show_config

__all__ = [
    "__version__",
    "channel",
    "data",
    "distributed",
    "loader",
    "partition",
    "sampler",
    "show_config",
    "typing",
    "utils",
]

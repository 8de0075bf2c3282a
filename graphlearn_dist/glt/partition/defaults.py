"""Partitioners with the arguments, the defaults and the attributes of GraphLearn-for-PyTorch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...data.schema import bare
from ...utils.device import gpu_number
from ...utils.no_effect import warn_no_effect

if TYPE_CHECKING:
    from ...partition.ingest import EdgeInput, NodeInput

FLOAT32 = {"node_feat_dtype": torch.float32, "edge_feat_dtype": torch.float32}
"""What features are stored as, unless a program says something else; the core keeps the dtype that they have."""


def with_defaults(function: Callable[..., Any], defaults: dict[str, Any]) -> Callable[..., Any]:
    """The same function, with other defaults of some arguments."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, value in defaults.items():
            bound.arguments.setdefault(name, value)
        return function(*bound.args, **bound.kwargs)

    parameters = [one.replace(default=defaults.get(one.name, one.default)) for one in signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # functions have it
    return call


def partitioner_init(core: Callable[..., Any]) -> Callable[..., Any]:
    """The constructor of a partitioner: features are float32, strategies of either case, ``device`` is taken.

    ``device`` is an argument of earlier releases and of the tutorials; a GPU has no effect, which a warning says once.
    """
    with_own_defaults = with_defaults(core, FLOAT32)

    @functools.wraps(with_own_defaults)
    def init(self: Any, *args: Any, device: Any = None, **kwargs: Any) -> None:
        if gpu_number(device, must_be_there=False) is not None:
            warn_no_effect("device", "partitioners work in host memory")
        if isinstance(kwargs.get("edge_assign_strategy"), str):
            kwargs["edge_assign_strategy"] = kwargs["edge_assign_strategy"].lower()
        with_own_defaults(self, *args, **kwargs)

    return init


class PartitionerAttributes:
    """What a program's own partitioner reads of itself, beside its methods."""

    nodes: dict[Any, NodeInput]
    edges: dict[Any, EdgeInput]
    edge_dir: str

    @property
    def data_cls(self) -> str:
        """``"homo"`` or ``"hetero"``."""
        return "homo" if None in self.nodes else "hetero"

    @property
    def node_types(self) -> list[Any] | None:
        """The node types; None of a homogeneous graph."""
        return None if None in self.nodes else list(self.nodes)

    @property
    def edge_types(self) -> list[Any] | None:
        """The edge types; None of a homogeneous graph."""
        return None if None in self.nodes else list(self.edges)

    @property
    def edge_assign_strategy(self) -> str:
        """``"by_src"`` or ``"by_dst"``."""
        return "by_src" if self.edge_dir == "out" else "by_dst"

    @property
    def num_nodes(self) -> Any:
        """The number of nodes (by node type)."""
        return bare({key: node.count for key, node in self.nodes.items()})

    @property
    def num_edges(self) -> Any:
        """The number of edges (by edge type)."""
        return bare({key: edge.row.numel() for key, edge in self.edges.items()})

    @property
    def edge_index(self) -> Any:
        """Sources and targets, a pair (by edge type)."""
        return bare({key: (edge.row, edge.col) for key, edge in self.edges.items()})

    @property
    def edge_weights(self) -> Any:
        """Weights of the edges (by edge type); None where none were given."""
        return bare({key: edge.weights for key, edge in self.edges.items() if edge.weights is not None})

    @property
    def node_feat(self) -> Any:
        """Features of the nodes (by node type); None where none were given."""
        return bare({key: node.feat for key, node in self.nodes.items() if node.feat is not None})

    @property
    def edge_feat(self) -> Any:
        """Features of the edges, by edge id (by edge type); None where none were given."""
        return bare({key: edge.feat for key, edge in self.edges.items() if edge.feat is not None})

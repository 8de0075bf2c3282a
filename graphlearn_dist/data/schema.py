"""The types of a data set, and what is kept by type."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch

from ..errors import InvalidArgumentError
from ..typing import EdgeType, NodeType
from ..utils.message_types import register_message

T = TypeVar("T")
EdgeDirection = Literal["in", "out"]
NODE_FEATURE, NODE_LABEL, NODE_TIME, EDGE_FEATURE = "node_feature", "node_label", "node_time", "edge_feature"


def by_type(value: T | Mapping[Any, T] | None) -> dict[Any, T]:
    """A bare object as ``{None: object}``, a mapping as a dict, None as an empty dict."""
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else {None: value}


def bare(values: dict[Any, T]) -> Any:
    """The inverse of ``by_type``: the bare object of a homogeneous data set, the dict of a typed one, None if empty."""
    return values.get(None, values) if values else None


@functools.cache
def store_name(kind: str, type_index: int) -> str:
    """The name under which processes ask each other for rows, such as ``"node_feature:0"``."""
    return f"{kind}:{type_index}"


@register_message
@dataclass(frozen=True)
class GraphSchema:
    """The types of a data set, in the order that gives them their integer ids.

    Attributes:
        node_types: sorted; ``(None,)`` for a homogeneous graph.
        edge_types: sorted; ``(None,)`` for a homogeneous graph.
        num_nodes: nodes of each type in the whole data set.
        edge_dir: which neighbors are sampled: ``"in"`` or ``"out"``.
        columns: what is known of the tables that the data set was built from (docs/tables.md), of ``"nodes"`` and
            ``"edges"`` by type: names of classes, widths and columns of features, types of ids. Else empty.
    """

    node_types: tuple[NodeType | None, ...]
    edge_types: tuple[EdgeType | None, ...]
    num_nodes: tuple[int, ...]
    edge_dir: EdgeDirection
    columns: dict[str, dict[Any, Any]] = field(default_factory=dict, compare=False)

    def class_names(self, node_type: NodeType | None = None) -> list[str]:
        """Names of the classes of a node type's labels, by number; ``InvalidArgumentError`` where none are known."""
        names = self._columns_of("nodes", node_type).get("label", {}).get("class_names")
        if names is None:
            raise InvalidArgumentError(
                f"node_type: no names of classes are known for {node_type!r}: they are of data sets that "
                "`graphlearn-dist build` made, with labels of classes"
            )
        return list(names)

    def feature_columns(self, type_name: NodeType | EdgeType | None = None) -> list[str]:
        """Names of the columns of a type's features, in their order; empty where none are known. None: of nodes."""
        arrays = self._columns_of("edges" if isinstance(type_name, tuple) else "nodes", type_name).get("features", [])
        return [name for array in arrays if array["name"] == "x" for name in array["columns"]]

    def _columns_of(self, group: str, type_name: NodeType | EdgeType | None) -> dict[str, Any]:
        found: dict[str, Any] = self.columns.get(group, {}).get(type_name, {})
        return found

    @functools.cached_property
    def is_homogeneous(self) -> bool:
        return self.node_types == (None,)

    def node_type_index(self, node_type: NodeType | None, name: str = "node_type") -> int:
        """The integer id of a node type."""
        if node_type not in self.node_types:
            known = "no named types" if self.is_homogeneous else ", ".join(map(str, self.node_types))
            raise InvalidArgumentError(f"{name}: unknown node type {node_type!r}; the data set has {known}")
        return self.node_types.index(node_type)

    @functools.cached_property
    def edge_specs(self) -> tuple[tuple[int, int], ...]:
        """Per edge type, (seed type, neighbor type): whose neighbors are sampled, and what those are."""
        return tuple(self._edge_spec(edge_type) for edge_type in self.edge_types)

    def _edge_spec(self, edge_type: EdgeType | None) -> tuple[int, int]:
        rows, cols = edge_ends(edge_type, self.edge_dir)
        return self.node_types.index(rows), self.node_types.index(cols)


def edge_ends(edge_type: EdgeType | None, edge_dir: EdgeDirection) -> tuple[NodeType | None, NodeType | None]:
    """Node types of an edge type: of its rows (whose neighbors are sampled), of its columns (those neighbors)."""
    if edge_type is None:
        return None, None
    return (edge_type[0], edge_type[2]) if edge_dir == "out" else (edge_type[2], edge_type[0])


def collect_node_types(edge_types: Any, node_types: Any = ()) -> tuple[NodeType | None, ...]:
    """Sorted node types that occur in edge types or are named besides; ``(None,)`` for the unnamed one."""
    found = set(node_types)
    for edge_type in edge_types:
        found.update((None,) if edge_type is None else (edge_type[0], edge_type[2]))
    return tuple(sorted(found, key=lambda name: "" if name is None else name))


def earliest(times: torch.Tensor) -> int:
    """Where the least of some times (int ``[n]``, n > 0) stands first."""
    return int((times == times.min()).nonzero()[0])

"""Names of the vocabulary: node and edge types, fan-outs, splits, and what one partition holds."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

import torch

from .utils.message_types import register_message

NodeType: TypeAlias = str
EdgeType: TypeAlias = tuple[str, str, str]
NumNeighbors: TypeAlias = list[int] | dict[EdgeType, list[int]]
NumSamples: TypeAlias = list[int] | dict[NodeType, list[int]]
TensorDataType: TypeAlias = "torch.Tensor | object"

NodeLabel: TypeAlias = "TensorDataType | dict[NodeType, TensorDataType]"
NodeIndex: TypeAlias = "TensorDataType | dict[NodeType, TensorDataType]"

Seeds: TypeAlias = "torch.Tensor | str"
InputNodes: TypeAlias = "Seeds | NodeType | tuple[NodeType, Seeds | list[Seeds] | None] | None"
EdgeIndexTensor: TypeAlias = "torch.Tensor | tuple[torch.Tensor, torch.Tensor]"
InputEdges: TypeAlias = "EdgeIndexTensor | EdgeType | tuple[EdgeType, EdgeIndexTensor | None] | None"

EDGE_TYPE_SEPARATOR = "__"
EDGE_TYPE_STR_SPLIT = EDGE_TYPE_SEPARATOR  # the name that programs for GraphLearn-for-PyTorch know
_REVERSE_PREFIX = "rev_"


def as_str(type: NodeType | EdgeType) -> str:
    """The one-string form of a node type (itself) or of an edge type (parts joined by ``__``)."""
    if isinstance(type, str):
        return type
    if isinstance(type, (list, tuple)) and len(type) == 3:
        return EDGE_TYPE_SEPARATOR.join(type)
    return ""


def reverse_edge_type(etype: EdgeType) -> EdgeType:
    """The type of the edges in the opposite direction.

    ``(a, r, b)`` becomes ``(b, "rev_" + r, a)`` and back; a relation from a type to itself keeps its name.
    """
    source, relation, target = etype
    if source != target:
        if relation.startswith(_REVERSE_PREFIX):
            relation = relation.removeprefix(_REVERSE_PREFIX)
        else:
            relation = _REVERSE_PREFIX + relation
    return (target, relation, source)


@register_message
class Split(Enum):
    """Which part of a data set's nodes is meant."""

    train = "train"
    valid = "valid"
    test = "test"


class GraphPartitionData(NamedTuple):
    """The edges of one partition, as COO.

    Fields: ``edge_index`` a pair of int64 ``[num_edges]`` (source ids, target ids, both global), ``eids`` int64
    ``[num_edges]`` (global), ``weights`` float ``[num_edges]`` or None, ``times`` int64 ``[num_edges]`` or None.
    """

    edge_index: tuple[torch.Tensor, torch.Tensor]
    eids: torch.Tensor
    weights: torch.Tensor | None = None
    times: torch.Tensor | None = None


class FeaturePartitionData(NamedTuple):
    """The feature rows of one partition: ``feats`` ``[num_rows, dim]`` of the ids ``ids`` int64 ``[num_rows]``."""

    feats: torch.Tensor | None
    ids: torch.Tensor | None
    cache_feats: torch.Tensor | None = None
    cache_ids: torch.Tensor | None = None


HeteroGraphPartitionData: TypeAlias = dict[EdgeType, GraphPartitionData]
HeteroFeaturePartitionData: TypeAlias = dict[NodeType | EdgeType, FeaturePartitionData]

"""What samplers give when they are called directly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..typing import EdgeType, NodeType
from ..utils.message_types import register_message
from ..utils.mixin import CastMixin


class EdgeIndex(NamedTuple):
    """Edges of one layer: ``edge_index`` int64 ``[2, E]``, ``e_id`` int64 ``[E]`` or None, ``size`` (rows, columns)."""

    edge_index: torch.Tensor
    e_id: torch.Tensor | None
    size: tuple[int, int]

    def to(self, *args: Any, **kwargs: Any) -> EdgeIndex:
        """The same on another device."""
        e_id = None if self.e_id is None else self.e_id.to(*args, **kwargs)
        return EdgeIndex(self.edge_index.to(*args, **kwargs), e_id, self.size)


@dataclass
class SamplerOutput(CastMixin):
    """A sampled subgraph of a homogeneous graph.

    Attributes:
        node: int64 ``[num_nodes]``, global ids, seeds first.
        row: int64 ``[num_edges]``, local position of each edge's neighbor.
        col: int64 ``[num_edges]``, local position of the node it was sampled for.
        edge: int64 ``[num_edges]``, global edge ids, or None.
        batch: int64, the seeds ``[num_seeds]``, or in a disjoint batch the tree of each node ``[num_nodes]``.
        num_sampled_nodes: new nodes per hop, seeds first.
        num_sampled_edges: edges per hop; None where they are not by hop.
        device: where the tensors are.
        metadata: the local ids of the seeds in an induced subgraph; of links a dict with ``edge_label_index`` and
            ``edge_label``, or ``src_index``, ``dst_pos_index`` and ``dst_neg_index``; else None.
    """

    node: torch.Tensor
    row: torch.Tensor
    col: torch.Tensor
    edge: torch.Tensor | None = None
    batch: torch.Tensor | None = None
    num_sampled_nodes: list[int] | None = None
    num_sampled_edges: list[int] | None = None
    device: torch.device | None = None
    metadata: Any | None = None


@dataclass
class HeteroSamplerOutput(CastMixin):
    """A sampled subgraph of a typed graph: the entries of a ``SamplerOutput`` by type.

    Edge types are those along which messages run from neighbor to seed: the graph's own where in-neighbors are
    sampled, the reverse ones where out-neighbors are.

    Attributes:
        node: by node type int64 ``[num_nodes]``, global ids, seeds first.
        row: by edge type int64 ``[num_edges]``, local position of each edge's neighbor.
        col: by edge type int64 ``[num_edges]``, local position of the node it was sampled for.
        edge: by edge type int64 ``[num_edges]``, global edge ids, or None.
        batch: by node type, as in ``SamplerOutput``.
        num_sampled_nodes: by node type (all of them), new nodes per hop.
        num_sampled_edges: by edge type (all of them), edges per hop; None where they are not by hop.
        edge_types: the edge types.
        input_type: type of the seeds or links.
        device: where the tensors are.
        metadata: as in ``SamplerOutput``.
    """

    node: dict[NodeType, torch.Tensor]
    row: dict[EdgeType, torch.Tensor]
    col: dict[EdgeType, torch.Tensor]
    edge: dict[EdgeType, torch.Tensor] | None = None
    batch: dict[NodeType, torch.Tensor] | None = None
    num_sampled_nodes: dict[NodeType, list[int]] | None = None
    num_sampled_edges: dict[EdgeType, list[int]] | None = None
    edge_types: list[EdgeType] | None = None
    input_type: NodeType | EdgeType | None = None
    device: torch.device | None = None
    metadata: Any | None = None

    def get_edge_index(self) -> dict[EdgeType, torch.Tensor]:
        """By edge type int64 ``[2, num_edges]``; empty for types of ``edge_types`` that were not sampled."""
        found = {name: torch.stack([rows, self.col[name]]) for name, rows in self.row.items()}
        for name in self.edge_types or ():
            found.setdefault(name, torch.empty((2, 0), dtype=torch.int64, device=self.device))
        return found


@register_message
@dataclass
class NeighborOutput(CastMixin):
    """One hop: ``nbr`` int64 ``[sum]`` grouped by seed, ``nbr_num`` int64 ``[num_seeds]``, ``edge`` int64 or None."""

    nbr: torch.Tensor
    nbr_num: torch.Tensor
    edge: torch.Tensor | None

    def to(self, device: torch.device) -> NeighborOutput:
        """The same on another device."""
        edge = None if self.edge is None else self.edge.to(device)
        return NeighborOutput(self.nbr.to(device), self.nbr_num.to(device), edge)

"""A batch's edges as sparse matrices want them: by the node that they were sampled for, in integers of 32 bits."""

from __future__ import annotations

from dataclasses import replace

import torch

from .. import _C
from ..core import to_optional_tensor, to_tensor
from ..data.schema import GraphSchema
from ..messages import Adjacency, Subgraph


def with_adjacency(subgraph: Subgraph, schema: GraphSchema) -> Subgraph:
    """The same edges in the other form.

    Those of one node are in the order of its neighbors' positions, and equal ones in the order that they had; edge ids
    follow.
    """
    found = [
        _compressed(edges, ids, subgraph.nodes[seed_type].numel())
        for edges, ids, (seed_type, _) in zip(subgraph.edge_index, subgraph.edge_ids, schema.edge_specs, strict=True)
    ]
    return replace(
        subgraph,
        edge_index=(),
        edge_ids=tuple(ids for _, ids in found),
        adjacency=tuple(adjacency for adjacency, _ in found),
    )


def _compressed(edges: torch.Tensor, ids: torch.Tensor | None, num_nodes: int) -> tuple[Adjacency, torch.Tensor | None]:
    if edges.device.type != "cpu":
        return _compressed_there(edges, ids, num_nodes)
    offsets, rows, ids_in_order = _C.compress_edges(edges, ids, num_nodes)
    return Adjacency(to_tensor(offsets), to_tensor(rows)), to_optional_tensor(ids_in_order)


def _compressed_there(
    edges: torch.Tensor, ids: torch.Tensor | None, num_nodes: int
) -> tuple[Adjacency, torch.Tensor | None]:
    """The same where edges lie on a GPU, without a word to the host."""
    rows, cols = edges
    by_row = torch.argsort(rows, stable=True)
    order = by_row[torch.argsort(cols[by_row], stable=True)]
    counts = torch.zeros(num_nodes + 1, dtype=torch.int32, device=edges.device)
    counts.index_add_(0, cols + 1, torch.ones_like(cols, dtype=torch.int32))
    offsets = counts.cumsum(0, dtype=torch.int32)
    return Adjacency(offsets, rows[order].to(torch.int32)), None if ids is None else ids[order]

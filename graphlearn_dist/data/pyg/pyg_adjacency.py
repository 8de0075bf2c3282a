"""Edges that PyG's data hold as ``adj_t``, a sparse tensor of torch: which these are, and a batch's part of it."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...utils.tensor import convert_to_tensor

_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
_OF_EACH_EDGE = ("edge_attr", "edge_weight", "edge_type", "edge_time")


def adjacency_of(store: Any) -> torch.Tensor | None:
    """The ``adj_t`` of a PyG storage, ``[targets, sources, ...]``; None where it has none that is torch's."""
    adj_t = store.get("adj_t")
    return adj_t if isinstance(adj_t, torch.Tensor) and adj_t.layout in _LAYOUTS else None


def edges_of(store: Any) -> torch.Tensor | None:
    """The edges of a PyG storage, from source to target ``[2, E]``; None where it has none that are read.

    Those of an ``adj_t`` are in the order of its rows, as PyG has them, whether these or its columns are compressed;
    of a COO tensor, in the order of its indices.

    Raises:
        InvalidArgumentError: there are more or fewer edges than rows of their attributes.
    """
    edges: torch.Tensor | None = store.get("edge_index")
    if edges is not None:
        edges = convert_to_tensor(edges, name="data.edge_index")
    adj_t = adjacency_of(store)
    if adj_t is None:
        return edges
    target, source, values = _entries(adj_t)
    counts = {name: len(store[name]) for name in _OF_EACH_EDGE if isinstance(store.get(name), torch.Tensor)}
    if edges is not None:
        counts["edge_index"] = edges.size(1)
    for name, count in counts.items():
        if count != len(values):
            raise InvalidArgumentError(
                f"data.adj_t: expected {count} edges, as {name} has, got {len(values)}; a sparse tensor that was made "
                "of edges that occur more than once has them once: coalesce() the data before"
            )
    return convert_to_tensor(torch.stack([source, target])) if edges is None else edges


def order_of_rows(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The order in which an ``adj_t`` has edges: by target, and by source among those of one target."""
    if source.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    return torch.argsort(target * (source.max() + 1) + source, stable=True)


def values_of(adj_t: torch.Tensor) -> torch.Tensor:
    """The values of an ``adj_t``, in the order of its edges."""
    return adj_t._values() if adj_t.layout is torch.sparse_coo else _entries(adj_t)[2]


def cut_adjacency(
    adj_t: torch.Tensor,
    values: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    ids: torch.Tensor | None,
    size: tuple[int, int],
) -> torch.Tensor:
    """An ``adj_t`` of a batch, in the layout of the data's.

    Args:
        adj_t: that of the data.
        values: its ``values_of``.
        source: local ids of the batch's edges, in ``order_of_rows``.
        target: likewise.
        ids: which edges of the data these are; without them, all values are 1.
        size: the batch's targets and sources.
    """
    rows = values.new_ones(len(source), *values.shape[1:]) if ids is None else values[ids.to(values.device)]
    source, target = source.to(adj_t.device), target.to(adj_t.device)
    shape = (*size, *rows.shape[1:])
    if adj_t.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(torch.stack([target, source]), rows, shape)
    if adj_t.layout is torch.sparse_csr:
        pointers = torch._convert_indices_from_coo_to_csr(target, size[0])
        return torch.sparse_csr_tensor(pointers, source, rows, shape)
    order = torch.argsort(source, stable=True)
    pointers = torch._convert_indices_from_coo_to_csr(source[order], size[1])
    return torch.sparse_csc_tensor(pointers, target[order], rows[order], shape)


def _entries(adj_t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Targets, sources and values of the entries, in the order of the edges."""
    if adj_t.layout is torch.sparse_coo:
        indices = adj_t._indices()
        return indices[0], indices[1], adj_t._values()
    if adj_t.layout is torch.sparse_csr:
        return _expanded(adj_t.crow_indices()), adj_t.col_indices().to(torch.int64), adj_t.values()
    target = adj_t.row_indices().to(torch.int64)
    order = torch.argsort(target, stable=True)
    return target[order], _expanded(adj_t.ccol_indices())[order], adj_t.values()[order]


def _expanded(pointers: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(pointers.diff().to(torch.int64))

"""Edges as lists of pairs and as compressed rows or columns."""

from __future__ import annotations

import torch

from ..errors import InvalidArgumentError

Compressed = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]


def ptr2ind(ptr: torch.Tensor) -> torch.Tensor:
    """The row of each entry, int64 ``[num_entries]``, from row bounds ``ptr`` int ``[num_rows + 1]``."""
    return torch.repeat_interleave(torch.arange(ptr.numel() - 1, device=ptr.device), ptr.diff())


def coo_to_csr(
    row: torch.Tensor,
    col: torch.Tensor,
    edge_id: torch.Tensor | None = None,
    edge_weight: torch.Tensor | None = None,
    node_sizes: tuple[int, int] | None = None,
) -> Compressed:
    """Pairs by row; edges of a row are in order of column, those of one pair in order of the input.

    Args:
        row: int ``[num_edges]``.
        col: int ``[num_edges]``.
        edge_id: int ``[num_edges]``, or None.
        edge_weight: ``[num_edges]``, or None.
        node_sizes: numbers of rows and columns; the largest ids plus one unless given.

    Returns:
        (bounds of rows int64 ``[num_rows + 1]``, columns, edge ids or None, weights or None).

    Raises:
        InvalidArgumentError: wrong lengths, or an id that is negative or not below ``node_sizes``.
    """
    num_rows, num_cols = node_sizes if node_sizes is not None else (_extent(row), _extent(col))
    for name, values in (("col", col), ("edge_id", edge_id), ("edge_weight", edge_weight)):
        if values is not None and values.shape != row.shape:
            raise InvalidArgumentError(f"{name}: expected shape {tuple(row.shape)}, got {tuple(values.shape)}")
    for name, ids, count in (("row", row, num_rows), ("col", col, num_cols)):
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < count:
            raise InvalidArgumentError(
                f"{name}: expected ids in [0, {count}), got {int(ids.min())} to {int(ids.max())}"
            )
    order = torch.argsort(col, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    indptr = torch.zeros(num_rows + 1, dtype=torch.int64, device=row.device)
    indptr[1:] = torch.bincount(row, minlength=num_rows).cumsum(0)
    picked = [None if values is None else values[order] for values in (edge_id, edge_weight)]
    return indptr, col[order], picked[0], picked[1]


def coo_to_csc(
    row: torch.Tensor,
    col: torch.Tensor,
    edge_id: torch.Tensor | None = None,
    edge_weight: torch.Tensor | None = None,
    node_sizes: tuple[int, int] | None = None,
) -> Compressed:
    """Pairs by column, as ``coo_to_csr`` with both exchanged: (rows, bounds of columns, edge ids, weights)."""
    sizes = None if node_sizes is None else (node_sizes[1], node_sizes[0])
    indptr, rows, ids, weights = coo_to_csr(col, row, edge_id, edge_weight, sizes)
    return rows, indptr, ids, weights


def _extent(ids: torch.Tensor) -> int:
    return int(ids.max()) + 1 if ids.numel() else 0

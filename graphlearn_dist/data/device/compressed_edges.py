"""Edges by row, in the form in which they go to a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class CompressedEdges:
    """What a sparse matrix is made of where it is wanted: a third of its bytes, where its entries are 1.

    Attributes:
        offsets: int32 ``[num_rows + 1]``, where the entries of each row begin.
        cols: int32 ``[num_entries]``.
        weights: floating point ``[num_entries]``; None: all are 1, of float32.
        num_cols: of the matrix.
    """

    offsets: torch.Tensor
    cols: torch.Tensor
    weights: torch.Tensor | None
    num_cols: int

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What it has of them."""
        return [part for part in (self.offsets, self.cols, self.weights) if part is not None]

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> CompressedEdges:
        """The same of changed tensors."""
        weights = None if self.weights is None else change(self.weights)
        return replace(self, offsets=change(self.offsets), cols=change(self.cols), weights=weights)

    def matrix(self) -> torch.Tensor:
        """The sparse CSR tensor ``[num_rows, num_cols]``, where its parts lie.

        A pair of nodes that has several edges has several entries. Indices are int64, since torch's ``gather`` reads
        wrong places by expanded int32 ones: the gradients of layers that look at edges one by one would be wrong.
        """
        offsets, cols = self.offsets.long(), self.cols.long()
        values = torch.ones(cols.numel(), device=cols.device) if self.weights is None else self.weights
        return torch.sparse_csr_tensor(
            offsets, cols, values, (offsets.numel() - 1, self.num_cols), check_invariants=False
        )

"""How much of a block is computed at once: as many of its nodes as fit into memory with their neighbors."""

from __future__ import annotations

import math

import torch

_FIRST, _GROWTH = 1024, 4
_ASSUMED_ROW_BYTES = 4096  # until the first rows are seen
_LEAST_BUDGET = 4 << 20  # bytes; who has less is not helped by pieces
_AIM = 0.75  # of what there is: the next nodes may have more neighbors than the last ones
_EDGE_BYTES = 40  # both ends as int64, a weight, and as much again while edges are sorted
_COPIES = 4  # of the rows: as they are read, and what a layer makes of them


class PieceSize:
    """Of a layer and a node type. Threads may share it: each learns from the other's pieces.

    Args:
        block_size: the most nodes of a piece.
        budget_bytes: for what one thread computes at once.

    Attributes:
        nodes: of the next piece.
    """

    def __init__(self, block_size: int, budget_bytes: int) -> None:
        self.nodes = min(_FIRST, block_size)
        self._block_size, self._budget = block_size, max(budget_bytes, _LEAST_BUDGET)
        self._row_bytes: int | None = None

    def learn_width(self, rows: torch.Tensor) -> None:
        """Rows before the layer or behind it have as many numbers as these."""
        self._row_bytes = max(self._row_bytes or 0, 4 * math.prod(rows.shape[1:]))

    def fits(self, nodes: int, rows: int, edges: int, *, with_messages: bool) -> bool:
        """Whether a piece may be computed; if not, the next one is smaller. One node is, whatever it takes.

        Args:
            nodes: of the piece.
            rows: of these and of those of their neighbors that are read for it.
            edges: that lead to the nodes.
            with_messages: whether the layer may make a row for each edge.
        """
        of_row = _ASSUMED_ROW_BYTES if self._row_bytes is None else self._row_bytes
        needed = rows * _COPIES * of_row + edges * (_EDGE_BYTES + (of_row if with_messages else 0))
        proposed = int(nodes * _AIM * self._budget / max(needed, 1))
        if needed > self._budget and nodes > 1:
            self.nodes = max(1, min(proposed, nodes // 2))
            return False
        most = max(nodes, self.nodes) * _GROWTH  # the last piece of a block may be a short one
        self.nodes = max(1, min(proposed, most, self._block_size))
        return True

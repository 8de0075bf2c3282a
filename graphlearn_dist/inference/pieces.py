"""How much of a block is computed at once: as many of its nodes as fit into memory with their neighbors."""

from __future__ import annotations

_FIRST, _GROWTH = 64, 4
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
        self._block_size, self._budget = block_size, budget_bytes
        self._row_bytes = 0

    def learn_width(self, width: int) -> None:
        """So many numbers a row has, before the layer or behind it."""
        self._row_bytes = max(self._row_bytes, 4 * width)

    def fits(self, nodes: int, rows: int, edges: int, *, with_messages: bool) -> bool:
        """Whether a piece may be computed; if not, the next one is smaller. One node is, whatever it takes.

        Args:
            nodes: of the piece.
            rows: of these and of those of their neighbors that are read for it.
            edges: that lead to the nodes.
            with_messages: whether the layer may make a row for each edge.
        """
        needed = rows * _COPIES * self._row_bytes + edges * (_EDGE_BYTES + (self._row_bytes if with_messages else 0))
        proposed = int(nodes * _AIM * self._budget / max(needed, 1))
        if needed > self._budget and nodes > 1:
            self.nodes = max(1, min(proposed, nodes // 2))
            return False
        self.nodes = max(1, min(proposed, nodes * _GROWTH, self._block_size))
        return True

"""Negative edges of a graph in this process."""

from __future__ import annotations

import itertools
from typing import Literal

import torch

from .. import _C
from ..core import thread_pool, to_tensor
from ..data.graph import Graph
from ..errors import InvalidArgumentError
from ..utils.shown import shown
from .links.negative_pool import HasEdge, NegativePool, negative_key


def local_has_edge(graph: Graph, edge_dir: Literal["in", "out"], num_threads: int = 1) -> HasEdge:
    """``HasEdge`` of a graph held whole, whose rows are sources (``edge_dir`` "out") or targets ("in")."""
    if edge_dir not in ("in", "out"):
        raise InvalidArgumentError(f"edge_dir: expected 'in' or 'out', got {shown(edge_dir)}")
    handler, pool = graph.graph_handler, thread_pool(num_threads)

    def has_edge(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        rows, cols = (src, dst) if edge_dir == "out" else (dst, src)
        return to_tensor(_C.has_edges(handler, rows, cols, pool)).view(torch.bool)

    return has_edge


class RandomNegativeSampler:
    """Pairs of nodes that are not edges, uniformly from all such pairs.

    Successive calls are successive batches: call ``n`` after construction draws with batch index ``n``.

    Args:
        graph: the edges; from one node type to itself, unless the topology was given the numbers of both ends.
        mode: ``"CPU"`` or ``"CUDA"``; both draw on the CPU.
        edge_dir: whether the rows of the graph are sources ("out") or targets ("in").
        seed: seed of all draws.
    """

    def __init__(self, graph: Graph, mode: str = "CPU", edge_dir: Literal["in", "out"] = "out", seed: int = 0) -> None:
        if mode not in ("CPU", "CUDA"):
            raise InvalidArgumentError(f"mode: expected 'CPU' or 'CUDA', got {shown(mode)}")
        graph.cover_one_type()
        self._has_edge = local_has_edge(graph, edge_dir)
        extents = (graph.row_count, graph.col_count)
        self._pool = NegativePool(*(extents if edge_dir == "out" else extents[::-1]))
        self._seed = seed
        self._calls = itertools.count()

    def sample(self, req_num: int, trials_num: int = 5, padding: bool = False) -> torch.Tensor:
        """Up to ``req_num`` pairs, int64 ``[2, n]``: sources, targets.

        With ``padding`` exactly ``req_num``: where too few were found, pairs that may be edges follow them.

        Raises:
            InvalidArgumentError: ``req_num`` below 0 or ``trials_num`` below 1.
        """
        index = next(self._calls)
        key = negative_key(self._seed, 0, index, 0)
        pairs = torch.stack(self._pool.binary(req_num, key, has_edge=self._has_edge, trials=trials_num))
        missing = req_num - pairs.size(1)
        if not padding or missing == 0:
            return pairs
        fill = self._pool.binary(missing, negative_key(self._seed, 0, index, 1))
        return torch.cat([pairs, torch.stack(fill)], dim=1)

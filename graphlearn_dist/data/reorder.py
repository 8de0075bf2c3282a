"""Orders of rows that put hot ones first."""

from __future__ import annotations

import torch

from ..errors import InvalidArgumentError
from .topology import Topology


def sort_by_in_degree(
    cpu_tensor: torch.Tensor, shuffle_ratio: float, topo: Topology, *, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorts rows by the in-degree of their nodes, highest first: the most frequent neighbors (GNNLab's and Quiver's
    degree order), so that a cache of the first rows is hit most often.

    Args:
        cpu_tensor: ``[num_nodes, ...]``, row v of node v.
        shuffle_ratio: this share of the rows, the first of them, is shuffled among itself, so that devices that hold
            equal parts of it have equally hot ones; 0 to 1.
        topo: the edges between these nodes. Nodes beyond it have no in-edges.
        seed: of the shuffle.

    Returns:
        The rows in the new order, and the new row of each id, int64 ``[num_nodes]``: ``tensor[v]`` is
        ``reordered[id2index[v]]``. Equal degrees stay in the order of ids.

    Raises:
        InvalidArgumentError: ``shuffle_ratio`` is not in [0, 1], or there are fewer rows than nodes with in-edges.
    """
    if not 0.0 <= shuffle_ratio <= 1.0:
        raise InvalidArgumentError(f"shuffle_ratio: expected 0 to 1, got {shuffle_ratio!r}")
    num_rows = len(cpu_tensor)
    found = topo.degrees if topo.layout == "CSC" else torch.bincount(topo.indices, minlength=topo.num_cols)
    if int((found > 0).nonzero().max() + 1 if bool(found.any()) else 0) > num_rows:
        raise InvalidArgumentError(f"cpu_tensor: expected a row for each of {len(found)} nodes, got {num_rows}")
    degrees = torch.zeros(num_rows, dtype=torch.int64)
    degrees[: len(found)] = found[:num_rows]
    order = degrees.argsort(descending=True, stable=True)
    num_shuffled = int(num_rows * shuffle_ratio)
    generator = torch.Generator().manual_seed(seed)
    order[:num_shuffled] = order[torch.randperm(num_shuffled, generator=generator)]
    id2index = torch.empty_like(order)
    id2index[order] = torch.arange(num_rows)
    return cpu_tensor[order], id2index

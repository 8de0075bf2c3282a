"""Orders of rows that put hot ones first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..errors import InvalidArgumentError
from ..utils.shown import shown
from ..utils.tensor import convert_to_tensor
from .topology import Topology


def count_neighbors(topologies: Iterable[Topology], num_nodes: int) -> torch.Tensor:
    """How many edges lead to each node as a neighbor, of all these topologies, int64 ``[num_nodes]``."""
    counts = torch.zeros(num_nodes, dtype=torch.int64)
    for topo in topologies:
        found = torch.bincount(topo.indices, minlength=topo.num_cols)
        counts[: len(found)] += found[:num_nodes]
    return counts


def resolve_hotness(given: Any, topologies: Sequence[Topology], num_ids: int) -> torch.Tensor | None:
    """How often each id is looked up, ``[num_ids]``, as a user says it: in numbers, or ``"degree"``; None stays None.

    Args:
        given: what the user said.
        topologies: whose neighbors the ids are.
        num_ids: how many there are.

    Raises:
        InvalidArgumentError: another word, or there are no topologies to count in.
    """
    if not isinstance(given, str):
        numbers: torch.Tensor | None = convert_to_tensor(given)
        return numbers
    if given != "degree" or not topologies:
        raise InvalidArgumentError(
            f"hotness: expected numbers, or 'degree' where a graph has edges that lead to these nodes, "
            f"got {shown(given)}"
        )
    return count_neighbors(topologies, num_ids)


def sort_rows(
    rows: Any,
    id2index: Any,
    sort_func: Callable[[torch.Tensor, float, Topology], tuple[torch.Tensor, torch.Tensor]],
    split_ratio: float,
    topologies: Sequence[Topology],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in the order of ``sort_func``, such as ``sort_by_in_degree``, and the new row of each id.

    Raises:
        InvalidArgumentError: rows are in another order than ids already, or the ids are not neighbors in one topology.
    """
    if len(topologies) != 1 or id2index is not None:
        raise InvalidArgumentError(
            f"sort_func: expected rows in the order of ids, and one edge type that leads to their nodes, got "
            f"{len(topologies)}; hotness='degree' counts the edges of all types"
        )
    return sort_func(convert_to_tensor(rows), split_ratio, topologies[0])


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
        raise InvalidArgumentError(f"shuffle_ratio: expected 0 to 1, got {shown(shuffle_ratio)}")
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

"""Personalized PageRank of a data set that is here, in a directory of partitions, or on servers."""

from __future__ import annotations

from typing import Any

import torch

from ..core import check_index_vector
from ..sampler import ppr
from ..sampler.inputs import edge_type_index
from ..sampler.ppr import PageRankOutput, pagerank_of, plan_of_all
from ..typing import EdgeType
from ..utils.coroutines import run_local
from .sampling.asked_dataset import AskedDataset
from .sampling.known_graph import graph_for

_SEEDS_AT_ONCE = 1024  # what was asked for is kept for as long


def personalized_pagerank(
    data: Any,
    seeds: torch.Tensor,
    *,
    edge_type: EdgeType | None = None,
    alpha: float = 0.15,
    epsilon: float = 1e-4,
    top_k: int = 32,
    num_threads: int = 1,
) -> PageRankOutput:
    """The ``top_k`` nodes of the highest personalized PageRank of each seed, the seed among them.

    The bits of ``sampler.personalized_pagerank``, for any number of partitions and threads: nodes are pushed in the
    same order wherever their rows lie. Where these are elsewhere, owners are asked for the degrees of nodes that are
    reached and the rows of those that are pushed, in rounds for 1024 seeds together, and each node once in them.

    Args:
        data: a ``Dataset`` that is whole, the ``ServedDataset`` of a client's servers, a partition directory of this
            machine, or PyG's data. Workers have ``DistNeighborSampler.personalized_pagerank``.
        seeds: int ``[num_seeds]``, global ids; duplicates are answered each.
        edge_type: along which edges, from one node type to itself; None in a homogeneous graph.
        alpha, epsilon, top_k, num_threads: see ``sampler.personalized_pagerank``.

    Returns:
        As there.

    Raises:
        InvalidArgumentError: arguments that are not as said.
        UnknownIdError: a seed is outside the graph.
        DeadlineExceededError, PeerLostError: a server did not answer.
    """
    data = graph_for(data, "out")
    number = edge_type_index(data.schema, edge_type, "edge_type")
    how: dict[str, Any] = {"alpha": alpha, "epsilon": epsilon, "top_k": top_k, "num_threads": num_threads}
    if not isinstance(data, AskedDataset):
        return ppr.personalized_pagerank(data.graphs()[edge_type], seeds, **how)
    graph, ids = data.graph_access(plan_of_all(data.schema), num_threads), check_index_vector(seeds, "seeds")
    blocks = torch.split(ids, _SEEDS_AT_ONCE)
    found = [run_local(pagerank_of(graph, number, block, **how)) for block in blocks]
    return PageRankOutput(*map(torch.cat, zip(*found, strict=True)))

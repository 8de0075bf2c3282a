"""Neighbors by visits of random walks, of a data set that is here, in a directory of partitions, or on servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..core import check_index_vector
from ..sampler.importance import ImportanceOutput, ImportanceSettings, importance_of
from ..sampler.walks import walk_plan
from ..typing import EdgeType
from ..utils.coroutines import run_local
from .sampling.known_graph import graph_access, graph_for


def importance_neighbors(
    data: Any,
    seeds: torch.Tensor,
    num_neighbors: int,
    *,
    num_random_walks: int,
    num_traversals: int,
    termination_prob: float = 0.5,
    metapath: Sequence[EdgeType] | None = None,
    with_weight: bool = False,
    seed: int = 0,
    epoch: int = 0,
    first: int = 0,
    num_threads: int = 1,
) -> ImportanceOutput:
    """The neighbors of each seed that random walks from it visit most often, as PinSAGE has them.

    The arguments mean what they do in ``dgl.sampling.PinSAGESampler`` and ``RandomWalkNeighborSampler``; visits are
    their ``weights``. Walks are those of ``random_walk``: the same bits for any number of partitions and threads.

    Args:
        data: a ``Dataset`` that is whole, the ``ServedDataset`` of a client's servers, a partition directory of this
            machine, or PyG's data. Workers have ``DistNeighborSampler.importance_neighbors``.
        seeds: int ``[num_seeds]``, global ids; duplicates have walks of their own.
        num_neighbors: at most so many for each seed.
        num_random_walks: from each seed.
        num_traversals: how often a walk goes through the metapath; each end of a traversal is a visit.
        termination_prob: chance that a walk ends before each traversal but the first.
        metapath: edge types to go along, from a node type back to it: ``[("user", "buys", "item"), ("item",
            "rev_buys", "user")]`` for users by what they buy. Needed where there are several edge types.
        with_weight: step by edge weight, along the types that have weights; else each edge is as likely.
        seed: of all draws.
        epoch: likewise, for other walks from the same seeds.
        first: the number of the first seed; others follow. A list of seeds that is cut into parts has the same walks.
        num_threads: threads of one step.

    Returns:
        Nodes, how many each seed has, and visits; see ``ImportanceOutput``. A seed that nothing was visited from has
        none; a seed itself is among its neighbors where a traversal came back to it.

    Raises:
        InvalidArgumentError: arguments that are not as said.
        UnknownIdError: a seed is outside the graph.
        DeadlineExceededError, PeerLostError: a server did not answer.
    """
    path = None if metapath is None else tuple(metapath)
    settings = ImportanceSettings(
        num_neighbors, num_random_walks, num_traversals, termination_prob, path, with_weight, seed, epoch
    )
    data = graph_for(data, "out")
    graph = graph_access(data, walk_plan(data, with_weight, seed), num_threads)
    return run_local(importance_of(graph, check_index_vector(seeds, "seeds").long(), settings, first))

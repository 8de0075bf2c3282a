"""Random walks of a data set that is here, in a directory of partitions, or on servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..sampler.walks import RandomWalks, WalkSettings, walk_plan
from ..typing import EdgeType
from ..utils.coroutines import run_local
from .sampling.known_graph import graph_access, graph_for


def random_walk(
    data: Any,
    seeds: torch.Tensor,
    length: int,
    *,
    metapath: Sequence[EdgeType] | None = None,
    p: float = 1.0,
    q: float = 1.0,
    restart_prob: float = 0.0,
    with_weight: bool = False,
    seed: int = 0,
    epoch: int = 0,
    first: int = 0,
    num_threads: int = 1,
) -> torch.Tensor:
    """A random walk from each seed, the way in which neighbors are sampled: along out-edges, or against in-edges.

    The bits of a walk depend on the data set, the arguments, the seed, the epoch and the walk's number, and on nothing
    else: not on the other walks, threads or partitions. Partitions elsewhere are asked once a step for all walks.

    Args:
        data: a ``Dataset`` that is whole, the ``ServedDataset`` of a client's servers, a partition directory of this
            machine, or PyG's data. Workers have ``DistNeighborSampler.random_walk``.
        seeds: int ``[n]``, nodes where walks start; duplicates walk each.
        length: steps.
        metapath: edge types to go along, one after another, and from the beginning again; needed where there are
            several.
        p: node2vec's return parameter, 0.0001 to 10000: a step back has 1/p of the chance of one to a neighbor of the
            node before.
        q: node2vec's in-out parameter, likewise: a step to any other node has 1/q of it. By weight 1/p, 1 and 1/q may
            differ by a factor of 10000.
        restart_prob: chance that a walk ends before each step, as in DGL.
        with_weight: step by edge weight, along the types that have weights; else each edge is as likely.
        seed: of all draws.
        epoch: likewise, for other walks from the same seeds.
        first: the number of the first walk; others follow. A list of seeds that is cut into parts has the same walks.
        num_threads: threads of one step.

    Returns:
        int64 ``[n, length + 1]``: the nodes of each walk, its seed first; -1 behind its end. A walk also ends at a node
        without neighbors.

    Raises:
        InvalidArgumentError: arguments that contradict each other or the data set.
        UnknownIdError: a seed is outside the graph.
        DeadlineExceededError, PeerLostError: a server did not answer.
    """
    settings = WalkSettings(
        length,
        None if metapath is None else tuple(metapath),
        p,
        q,
        restart_prob,
        with_weight=with_weight,
        seed=seed,
        epoch=epoch,
    )
    data = graph_for(data, "out")
    plan = walk_plan(data, with_weight, seed)
    return run_local(RandomWalks(graph_access(data, plan, num_threads), settings).walk(seeds, first))

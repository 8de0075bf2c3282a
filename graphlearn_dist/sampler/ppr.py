"""Approximate personalised PageRank: the nodes that matter most to a seed."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import _C
from ..core import check_index_tensor, thread_pool, to_tensor
from ..data.graph import Graph
from ..data.schema import GraphSchema
from ..errors import InvalidArgumentError
from ..utils.shown import shown
from ..utils.values import is_number, is_whole
from .plan import UNBOUNDED, SamplingPlan, build_plan
from .tasks import HostGraph, NeighborDraw


class PageRankOutput(NamedTuple):
    """The best nodes of each seed.

    Fields: ``nodes`` int64 ``[sum]``, global ids grouped by seed in the order asked, best first; ``counts`` int64
    ``[num_seeds]``; ``scores`` float32 ``[sum]``.
    """

    nodes: torch.Tensor
    counts: torch.Tensor
    scores: torch.Tensor


def personalized_pagerank(
    graph: Graph,
    seeds: torch.Tensor,
    *,
    alpha: float = 0.15,
    epsilon: float = 1e-4,
    top_k: int = 32,
    num_threads: int = 1,
) -> PageRankOutput:
    """The ``top_k`` nodes of the highest personalised PageRank of each seed, the seed among them.

    Forward push (Andersen, Chung, Lang: "Local graph partitioning using PageRank vectors", FOCS 2006) along the rows of
    the graph. A score is at most the exact one. What is missing is what walks from the residuals would still bring, and
    no node's residual exceeds ``epsilon`` times its degree. A walk that reaches a node without neighbors stays there.

    Args:
        graph: edges from one node type to itself.
        seeds: int ``[num_seeds]``, global ids; duplicates are answered each.
        alpha: probability that a walk stops at a step.
        epsilon: bound of the residuals; the work of a seed grows with ``1 / (epsilon * alpha)``.
        top_k: nodes wanted of each seed; fewer come where fewer have a score.
        num_threads: threads; the result does not depend on them.

    Returns:
        Nodes by (score descending, id ascending).

    Raises:
        InvalidArgumentError: ``alpha`` outside (0, 1), ``epsilon`` not above 0, ``top_k`` below 1, or rows and columns
            that are not of one type.
        UnknownIdError: a seed is outside the graph.
    """
    check_settings(alpha, epsilon, top_k)
    graph.cover_one_type()
    if graph.row_count != graph.col_count:
        raise InvalidArgumentError(
            f"graph: expected edges from one node type to itself, got {graph.row_count} and {graph.col_count} nodes"
        )
    ids = check_index_tensor(seeds, "seeds", num_ids=graph.row_count)
    counts, nodes, scores = _C.ppr_topk(graph.graph_handler, ids, alpha, epsilon, top_k, thread_pool(num_threads))
    return PageRankOutput(to_tensor(nodes), to_tensor(counts), to_tensor(scores))


def check_settings(alpha: float, epsilon: float, top_k: int) -> None:
    """Raises an ``InvalidArgumentError``, see ``personalized_pagerank``."""
    if not is_number(alpha) or not 0 < alpha < 1:
        raise InvalidArgumentError(f"alpha: expected a number in (0, 1), got {shown(alpha)}")
    if not is_number(epsilon) or not epsilon > 0:
        raise InvalidArgumentError(f"epsilon: expected a number above 0, got {shown(epsilon)}")
    if not is_whole(top_k) or top_k < 1:
        raise InvalidArgumentError(f"top_k: expected an integer of at least 1, got {shown(top_k)}")


def plan_of_all(schema: GraphSchema) -> SamplingPlan:
    """How ``pagerank_of`` draws: every neighbor, whatever its weight and time."""
    return build_plan(schema, None, optional=True)


async def pagerank_of(
    graph: HostGraph,
    edge_type: int,
    seeds: torch.Tensor,
    *,
    alpha: float,
    epsilon: float,
    top_k: int,
    num_threads: int = 1,
) -> PageRankOutput:
    """As ``personalized_pagerank``, bit by bit, of a graph whose rows may lie with several owners.

    All that wait to be pushed from some seed are asked for at once: of nodes that are reached their degrees, of those
    whose residual is large enough their rows, each once for all seeds of the call.
    """
    check_settings(alpha, epsilon, top_k)
    schema = graph.plan.schema
    row_type, col_type = schema.edge_specs[edge_type]
    if row_type != col_type:
        raise InvalidArgumentError(
            f"edge_type: expected edges from one node type to itself, got {schema.edge_types[edge_type]}"
        )
    num_nodes, pool = schema.num_nodes[row_type], thread_pool(num_threads)
    ids = check_index_tensor(seeds, "seeds", num_ids=num_nodes)
    pushes = _C.PprPushes(ids, num_nodes, alpha, epsilon)
    while True:
        lacks_degrees, lacks_rows = map(to_tensor, pushes.advance(pool))
        if not lacks_degrees.numel() and not lacks_rows.numel():
            counts, nodes, scores = pushes.best(top_k, pool)
            return PageRankOutput(to_tensor(nodes), to_tensor(counts), to_tensor(scores))
        if lacks_degrees.numel():
            pushes.give_degrees(lacks_degrees, await graph.degrees(edge_type, lacks_degrees))
        if lacks_rows.numel():
            (rows,) = await graph.draw_neighbors([NeighborDraw(edge_type, lacks_rows, UNBOUNDED, key=0)])
            pushes.give_rows(lacks_rows, *rows)

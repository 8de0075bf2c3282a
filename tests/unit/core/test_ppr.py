"""Personalised PageRank by forward push, against the exact one by a linear solve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.data import Graph, Topology
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.sampler.ppr import personalized_pagerank
from tests.support.graphs import TestGraph, graphs, random_graph

FLOAT32 = 2.0**-23  # relative error of one rounding of a score


def graph_of(edges: torch.Tensor, num_nodes: int) -> Graph:
    return Graph(Topology(edges, num_nodes=(num_nodes, num_nodes)))


def step_matrix(edges: torch.Tensor, num_nodes: int) -> np.ndarray:
    """Row u: where a walk at u goes next. A walk at a node without neighbors stays."""
    matrix = np.zeros((num_nodes, num_nodes))
    np.add.at(matrix, tuple(edges.numpy()), 1)
    degree = matrix.sum(1)
    matrix[degree == 0, degree == 0] = 1
    return matrix / np.maximum(degree, 1)[:, None]


def exact(edges: torch.Tensor, num_nodes: int, seed: int, alpha: float) -> np.ndarray:
    start = np.eye(num_nodes)[seed]
    return np.linalg.solve(np.eye(num_nodes) - (1 - alpha) * step_matrix(edges, num_nodes).T, alpha * start)


def dense(graph: Graph, seed: int, num_nodes: int, **how: Any) -> np.ndarray:
    """All scores of one seed."""
    nodes, counts, scores = personalized_pagerank(graph, torch.tensor([seed]), top_k=num_nodes, **how)
    assert counts.tolist() == [nodes.numel()]
    out = np.zeros(num_nodes)
    out[nodes.numpy()] = scores.numpy()
    return out


@given(
    graph=graphs(typed=False),
    data=st.data(),
    alpha=st.sampled_from([0.05, 0.15, 0.5, 0.9]),
    epsilon=st.sampled_from([1e-1, 1e-3, 1e-6]),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_residuals_are_bounded(graph: TestGraph, data: st.DataObject, alpha: float, epsilon: float) -> None:
    """scores = exact - (what the residuals would still bring): so the residuals follow from the scores."""
    num_nodes, edges = graph.num_nodes[None], graph.edges[None]
    seed = data.draw(st.integers(0, num_nodes - 1))
    scores = dense(graph_of(edges, num_nodes), seed, num_nodes, alpha=alpha, epsilon=epsilon)
    assert scores[seed] > 0
    steps = step_matrix(edges, num_nodes)
    degree = np.bincount(edges[0], minlength=num_nodes)
    residual = np.eye(num_nodes)[seed] - (scores - (1 - alpha) * steps.T @ scores) / alpha
    rounding = 4 * FLOAT32 / alpha
    assert (residual >= -rounding).all()
    assert (residual <= epsilon * degree + rounding).all()
    assert (scores <= exact(edges, num_nodes, seed, alpha) + FLOAT32).all()


def test_best_nodes_of_an_exact_solution() -> None:
    num_nodes, alpha = 60, 0.2
    edges = random_graph(num_nodes, 400, seed=4).edges[None]
    graph = graph_of(edges, num_nodes)
    for seed in (0, 7, 30):
        wanted = exact(edges, num_nodes, seed, alpha)
        order = sorted(range(num_nodes), key=lambda v: (-np.float32(wanted[v]), v))
        gaps = -np.diff(wanted[order])
        top_k = next(k for k in range(5, num_nodes) if gaps[k - 1] > 1e-6)  # what comes next is clearly less
        nodes, counts, scores = personalized_pagerank(
            graph, torch.tensor([seed]), alpha=alpha, epsilon=1e-10, top_k=top_k
        )
        assert counts.tolist() == [top_k]
        assert set(nodes.tolist()) == set(order[:top_k])
        assert np.allclose(scores.numpy(), wanted[nodes.numpy()], rtol=1e-5)


def test_equal_scores_come_by_id() -> None:
    """A star: the hub's leaves are all alike; and leaves without neighbors keep what reaches them."""
    edges = torch.tensor([[5] * 5, [4, 0, 3, 1, 2]])
    nodes, counts, scores = personalized_pagerank(graph_of(edges, 6), torch.tensor([5, 3]), alpha=0.25, top_k=4)
    assert counts.tolist() == [4, 1]
    assert nodes.tolist() == [5, 0, 1, 2, 3]
    assert scores.tolist() == pytest.approx([0.25, 0.15, 0.15, 0.15, 1.0])


def test_multi_edges_weigh_more_and_self_loops_return() -> None:
    edges = torch.tensor([[0, 0, 0, 0, 1, 2], [1, 1, 1, 2, 1, 2]])
    scores = dense(graph_of(edges, 3), 0, 3, alpha=0.2, epsilon=1e-9)
    assert scores.tolist() == pytest.approx([0.2, 0.6, 0.2], abs=1e-6)


def test_a_hub_is_pushed_whatever_its_degree() -> None:
    hub = torch.stack([torch.zeros(500, dtype=torch.int64), torch.arange(1, 501)])
    nodes, counts, _ = personalized_pagerank(graph_of(hub, 501), torch.tensor([0]), epsilon=0.1, top_k=3)
    assert counts.tolist() == [3]
    assert nodes.tolist() == [0, 1, 2]


def test_seeds_and_threads_do_not_mix() -> None:
    num_nodes = 300
    graph = graph_of(random_graph(num_nodes, 3000, seed=9).edges[None], num_nodes)
    seeds = torch.tensor([3, 0, 299, 3, 150, *range(40)], dtype=torch.int32)
    together = personalized_pagerank(graph, seeds, epsilon=1e-5, top_k=20)
    alone = [personalized_pagerank(graph, seed[None], epsilon=1e-5, top_k=20) for seed in seeds]
    for field in ("nodes", "counts", "scores"):
        assert torch.equal(getattr(together, field), torch.cat([getattr(one, field) for one in alone]))
    for threads in (2, 3):
        threaded = personalized_pagerank(graph, seeds, epsilon=1e-5, top_k=20, num_threads=threads)
        assert all(torch.equal(a, b) for a, b in zip(threaded, together, strict=True))


def test_wide_ids_and_no_seeds() -> None:
    narrow = graph_of(torch.tensor([[0, 1], [1, 2]]), 3)
    wide = _C.Csr(narrow.topo.indptr, narrow.topo.indices.long(), None, 3)
    for csr in (narrow.graph_handler, wide):
        counts, nodes, _ = map(to_tensor, _C.ppr_topk(csr, torch.tensor([0]), 0.5, 1e-6, 9, _C.ThreadPool(1)))
        assert (counts.tolist(), nodes.tolist()) == ([3], [0, 1, 2])
    nodes, counts, scores = personalized_pagerank(narrow, torch.empty(0, dtype=torch.int64))
    assert nodes.numel() == counts.numel() == scores.numel() == 0
    assert scores.dtype == torch.float32


@pytest.mark.parametrize("bad", [3, -1])
def test_unknown_seeds(bad: int) -> None:
    graph = graph_of(torch.tensor([[0], [1]]), 3)
    with pytest.raises(UnknownIdError, match=rf"seeds: id {bad} "):
        personalized_pagerank(graph, torch.tensor([0, bad]))
    with pytest.raises(UnknownIdError, match=rf"seeds\[1\]: node id {bad} is outside \[0, 3\)"):
        _C.ppr_topk(graph.graph_handler, torch.tensor([0, bad]), 0.5, 0.1, 1, _C.ThreadPool(2))


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"alpha": 0.0}, "alpha: expected"),
        ({"alpha": 1.0}, "alpha: expected"),
        ({"alpha": float("nan")}, "alpha: expected"),
        ({"epsilon": 0.0}, "epsilon: expected"),
        ({"epsilon": float("nan")}, "epsilon: expected"),
        ({"top_k": 0}, "top_k: expected .*at least 1, got 0"),
    ],
)
def test_refuses(how: dict[str, Any], match: str) -> None:
    graph, seeds = graph_of(torch.tensor([[0], [1]]), 2), torch.tensor([0])
    with pytest.raises(InvalidArgumentError, match=match):
        personalized_pagerank(graph, seeds, **how)
    values = {"alpha": 0.5, "epsilon": 0.1, "top_k": 1} | how
    with pytest.raises(InvalidArgumentError, match=match):
        _C.ppr_topk(graph.graph_handler, seeds, *values.values(), _C.ThreadPool(1))


def test_refuses_edges_between_types() -> None:
    graph = Graph(Topology(torch.tensor([[0], [1]]), num_nodes=(1, 2)))
    with pytest.raises(InvalidArgumentError, match="graph: expected edges from one node type to itself"):
        personalized_pagerank(graph, torch.tensor([0]))
    with pytest.raises(InvalidArgumentError, match="csr: expected edges from one node type to itself"):
        _C.ppr_topk(graph.graph_handler, torch.tensor([0]), 0.5, 0.1, 1, _C.ThreadPool(1))

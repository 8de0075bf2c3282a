"""Top-k by weight: the heaviest edges of each row, bit by bit as defined, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import NeighborLoader
from tests.support.graphs import EDGE_TYPES, WEIGHT_DTYPES, make_dataset, typed_graph, with_weights
from tests.support.hops import one_hop, weighted_csr
from tests.support.reference import Draw, pick_top

TOP = Draw("topk")
WEIGHT = st.one_of(
    st.integers(0, 3).map(float), st.floats(0, 1.7e308), st.sampled_from([0.0, -0.0, 5e-324, 1e-323, 1e300])
)


def rows_of(weights: list[list[float]], dtype: torch.dtype, *, times: torch.Tensor | None = None) -> _C.Csr:
    """Row v has the neighbors 0, 1, ... of the given weights: a neighbor is its position."""
    indptr = torch.tensor([0, *map(len, weights)]).cumsum(0)
    indices = torch.tensor([i for row in weights for i in range(len(row))], dtype=torch.int32)
    values = torch.tensor([weight for row in weights for weight in row], dtype=dtype)
    return weighted_csr(indptr, indices, None, 10_000, times, values)


@given(
    rows=st.lists(st.lists(WEIGHT, max_size=130), min_size=1, max_size=5),
    fanout=st.sampled_from([-1, 1, 2, 5, 20, 96, 97, 120]),
    threads=st.integers(1, 4),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_picks_equal_the_definition(rows: list[list[float]], fanout: int, threads: int) -> None:
    """Many equal weights, zeros of either sign, and the smallest numbers there are."""
    found, _ = one_hop(rows_of(rows, torch.float64), torch.arange(len(rows)), fanout, 1, TOP, threads=threads)
    assert found == [pick_top(row, fanout) for row in rows]


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES, ids=str)
def test_by_hand(dtype: torch.dtype) -> None:
    """The first of equal weights; edges of weight 0 where nothing else is left; all where there are no more."""
    rows = [[1.0, 3.0, 2.0, 3.0, 3.0], [0.0, 0.0, 5.0, 0.0], [2.0], []]
    csr = rows_of(rows, dtype)
    assert one_hop(csr, torch.arange(4), 2, 0, TOP)[0] == [[1, 3], [0, 2], [0], []]
    assert one_hop(csr, torch.arange(4), 4, 7, TOP)[0] == [[1, 2, 3, 4], [0, 1, 2, 3], [0], []]
    assert one_hop(csr, torch.arange(4), -1, 0, TOP)[0] == [[0, 1, 2, 3, 4], [0, 1, 2, 3], [0], []]


def test_only_edges_that_are_not_later() -> None:
    """Edge i has time i, and weights rise: a node of time t sees t + 1 edges and takes the last of them."""
    times = torch.arange(10).repeat(3)
    csr = rows_of([[float(i) for i in range(10)]] * 3, torch.float32, times=times)
    found, _ = one_hop(csr, torch.arange(3), 2, 0, Draw("topk", times="before"), times=torch.tensor([0, 4, 99]))
    assert found == [[0], [3, 4], [8, 9]]


def test_a_loader_takes_the_heaviest_of_each_type_and_draws_where_there_are_no_weights() -> None:
    plain, weighted = EDGE_TYPES[1:]
    graph = typed_graph(40, 20, 900, 1)
    graph = replace(graph, weights={weighted: with_weights(graph, 2, some_zero=True).weights[weighted]})
    dataset, nodes = make_dataset(graph, "in"), ("user", torch.arange(40))
    options: dict[str, Any] = {"batch_size": 40, "with_edge": True}
    first, second = (
        next(iter(NeighborLoader(dataset, [3], nodes, strategy="topk", seed=seed, **options))) for seed in (1, 2)
    )
    random = next(iter(NeighborLoader(dataset, [3], nodes, seed=1, **options)))
    assert first[weighted].e_id.tolist() == second[weighted].e_id.tolist() != random[weighted].e_id.tolist()
    assert first[plain].e_id.tolist() == random[plain].e_id.tolist() != second[plain].e_id.tolist()
    target, weights = graph.edges[weighted][1], graph.weights[weighted]
    taken = torch.zeros(len(target), dtype=torch.bool)
    taken[first[weighted].e_id] = True
    for node in range(40):
        mine = target == node
        assert weights[mine & taken].sort().values.tolist() == weights[mine].sort().values[-3:].tolist()


def test_what_it_refuses() -> None:
    with pytest.raises(InvalidArgumentError, match="replace: top-k samples without replacement"):
        one_hop(rows_of([[1.0]], torch.float32), torch.tensor([0]), 1, 0, Draw("topk", replace=True))
    plain = _C.Csr(torch.tensor([0, 1]), torch.tensor([0]), None, 1)
    with pytest.raises(InvalidArgumentError, match=r"strategy: top-k was asked for, .* no edge weights"):
        one_hop(plain, torch.tensor([0]), 1, 0, TOP)
    graph = typed_graph(10, 5, 40, 1)
    nodes = ("user", torch.arange(10))
    with pytest.raises(InvalidArgumentError, match="strategy: 'topk' expected edge weights in the data set"):
        NeighborLoader(make_dataset(graph), [2], nodes, strategy="topk")
    weighted = make_dataset(with_weights(graph, 1, some_zero=False))
    refused: tuple[dict[str, Any], ...] = ({"replace": True}, {"with_weight": True})
    for changes in refused:
        with pytest.raises(InvalidArgumentError, match="strategy: 'topk' takes the edges of largest weight"):
            NeighborLoader(weighted, [2], nodes, strategy="topk", **changes)
    with pytest.raises(InvalidArgumentError, match="temporal_strategy: 'last' takes"):
        NeighborLoader(weighted, [2], nodes, strategy="topk", temporal_strategy="last")

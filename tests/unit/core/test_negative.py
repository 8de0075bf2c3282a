"""What negatives are made of: edge look-up against plain Python, drawn ids against the generator's definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from tests.support import reference
from tests.support.graphs import TestGraph, graphs

POOLS = {n: _C.ThreadPool(n) for n in (1, 2, 3)}
A = torch.tensor
# Each distribution test errs with this probability if the sampler is right; keys are fixed, so it always or never does.
FALSE_ALARM = 1e-6


def csr_of(row: torch.Tensor, col: torch.Tensor, num_rows: int, num_cols: int) -> Any:
    return _C.Csr(*map(to_tensor, _C.build_csr(row, col, None, num_rows, num_cols, POOLS[1])), num_cols)


def has_edges(csr: Any, rows: Any, cols: Any, threads: int = 1) -> list[int]:
    found = to_tensor(_C.has_edges(csr, rows, cols, POOLS[threads]))
    assert found.dtype == torch.uint8
    return found.tolist()


def random_ids(key: int, positions: Any, bound: int, weights: Any = None, sums: Any = None) -> torch.Tensor:
    return to_tensor(_C.random_ids(key, positions, bound, weights, sums))


def sums_of(weights: torch.Tensor) -> torch.Tensor:
    return to_tensor(_C.sum_weights(A([0, weights.numel()]), weights, POOLS[1])[0])


@given(graph=graphs(typed=False), threads=st.integers(1, 3), dtype=st.sampled_from([torch.int32, torch.int64]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_every_pair_is_looked_up(graph: TestGraph, threads: int, dtype: torch.dtype) -> None:
    num_nodes, (row, col) = graph.num_nodes[None], graph.edges[None]
    edges = set(zip(row.tolist(), col.tolist(), strict=True))
    nodes = torch.arange(num_nodes, dtype=dtype)
    src, dst = nodes.repeat_interleave(num_nodes), nodes.repeat(num_nodes)
    actual = has_edges(csr_of(row, col, num_nodes, num_nodes), src, dst, threads)
    assert actual == [(s, d) in edges for s, d in zip(src.tolist(), dst.tolist(), strict=True)]


def test_edges_of_a_graph_whose_ids_are_wide() -> None:
    csr = csr_of(A([0, 1]), A([2**33, 5]), 2, 2**34)
    assert has_edges(csr, A([0, 0, 1, 1]), A([2**33, 5, 5, 2**33])) == [1, 0, 1, 0]
    narrow = _C.Csr(A([0, 1]), A([5], dtype=torch.int32), None, 2**34)  # more nodes than its indices can name
    assert has_edges(narrow, A([0, 0]), A([5, 2**32 + 5])) == [1, 0]


@pytest.mark.parametrize(
    ("rows", "cols", "error", "match"),
    [
        (A([0, 2]), A([0, 0]), UnknownIdError, r"rows\[1\]: row 2 is outside \[0, 2\)"),
        (A([-1]), A([0]), UnknownIdError, r"rows\[0\]: row -1"),
        (A([0]), A([3]), UnknownIdError, r"cols\[0\]: node id 3 is outside \[0, 3\)"),
        (A([0]), A([-1]), UnknownIdError, r"cols\[0\]: node id -1"),
        (A([0]), A([0, 1]), InvalidArgumentError, "cols: expected as many"),
        (A([0.0]), A([0]), InvalidArgumentError, "rows: expected"),
    ],
)
def test_look_up_refuses(rows: Any, cols: Any, error: type[Exception], match: str) -> None:
    for threads in POOLS:
        with pytest.raises(error, match=match):
            has_edges(csr_of(A([0, 1]), A([1, 2]), 2, 3), rows, cols, threads)


@given(key=st.integers(0, (1 << 64) - 1), bound=st.integers(1, 1 << 62), start=st.integers(0, 1 << 60))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_draw_is_a_function_of_key_and_position(key: int, bound: int, start: int) -> None:
    positions = A([start, start + 5, start, start + 1])
    drawn = random_ids(key, positions, bound)
    assert drawn.tolist() == [reference.below(key, p, 0, bound) for p in positions.tolist()]


def test_uniform_draws_are_uniform() -> None:
    counts = torch.bincount(random_ids(11, torch.arange(60_000), 37), minlength=37)
    assert chisquare(counts).pvalue > FALSE_ALARM


def test_weighted_draws_follow_the_weights() -> None:
    """Nodes without weight, at both ends and between, never come."""
    weight = A([0.0, 3.0, 0.0, 0.0, 1.0, 0.25, 10.0, 0.0], dtype=torch.float64)
    counts = torch.bincount(random_ids(12, torch.arange(60_000), 8, weight, sums_of(weight)), minlength=8)
    assert counts[weight == 0].tolist() == [0, 0, 0, 0]
    kept = weight > 0
    assert chisquare(counts[kept], weight[kept] / weight.sum() * 60_000).pvalue > FALSE_ALARM


def test_keys_and_positions_give_independent_draws() -> None:
    """Pairs of draws, by neighboring positions and by neighboring keys, fill a square evenly."""
    positions = torch.arange(50_000)
    base = random_ids(5, positions, 12)
    for other in (random_ids(5, positions + 50_000, 12), random_ids(6, positions, 12)):
        counts = torch.bincount(base * 12 + other, minlength=144)
        assert chisquare(counts).pvalue > FALSE_ALARM
    counts = torch.bincount(base[::2] * 12 + base[1::2], minlength=144)
    assert chisquare(counts).pvalue > FALSE_ALARM


def test_no_draws() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert random_ids(1, none, 0).numel() == random_ids(1, none, 3).numel() == 0
    empty = torch.empty(0, dtype=torch.float64)
    assert random_ids(1, none, 0, empty, empty).numel() == 0


@pytest.mark.parametrize(
    ("positions", "bound", "weights", "match"),
    [
        (A([0]), 0, None, "bound: expected at least 1"),
        (A([0]), -1, None, "bound: expected at least 1"),
        (A([0], dtype=torch.int32), 2, None, "positions: expected dtype int64"),
        (A([0]), 2, A([1.0]).double(), r"edge_weights: expected \[2\]"),
        (A([0]), 2, A([0.0, 0.0]).double(), "weights: expected a positive one, got none"),
    ],
)
def test_draws_refuse(positions: Any, bound: int, weights: Any, match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        random_ids(1, positions, bound, weights, None if weights is None else sums_of(weights))


def test_draws_need_weights_and_sums_that_fit() -> None:
    weights = A([1.0, 2.0])
    for one, other, match in (
        (weights, None, "weights, sums: expected both or none"),
        (None, sums_of(weights), "weights, sums: expected both or none"),
        (weights, A([1.0, 2.0]), "sums: expected"),
        (weights, A([1.0]).double(), "sums: expected"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            random_ids(1, A([0]), 2, one, other)

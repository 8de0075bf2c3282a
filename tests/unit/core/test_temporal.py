"""Sampling with times: no edge from the future, most recent ones, and rows in the order of time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.errors import InvalidArgumentError
from tests.support.graphs import MAX_TIME, random_graph, typed_graph, with_times, with_weights
from tests.support.hops import POOLS, NativeBatches, native_graph, one_hop, weighted_csr
from tests.support.reference import Draw

ALPHA = 1e-6 / 10  # one false alarm in a million among at most ten p-values
BEFORE = [
    Draw(m, r, "before") for m, r in (("uniform", False), ("uniform", True), ("weighted", False), ("labor", False))
]
EARLIEST, LATEST = -(1 << 63), (1 << 63) - 1


def clock(times: list[int]) -> _C.Csr:
    """One node whose i-th neighbor, of weight i + 1, has the i-th time; times ascend."""
    n = len(times)
    ends = torch.zeros(n, dtype=torch.int64), torch.arange(n)
    arrays = _C.build_csr(*ends, None, 1, n, POOLS[1], torch.tensor(times), torch.arange(1.0, n + 1))
    indptr, indices, ids, sorted_times, weights = map(to_tensor, arrays)
    return weighted_csr(indptr, indices, ids, n, sorted_times, weights)


def asked(times: list[int], **trees: Any) -> dict[str, Any]:
    return {"ids": torch.zeros(len(times), dtype=torch.int64), "times": torch.tensor(times), **trees}


@pytest.mark.parametrize("draw", [*BEFORE, Draw(times="latest")])
def test_edges_of_the_same_instant_are_there(draw: Draw) -> None:
    """At most the time itself; all of those where the fan-out has room, none where there are none."""
    neighbors, _ = one_hop(clock([0, 5, 5, 9]), fanout=-1, key=1, draw=draw, **asked([-1, 0, 4, 5, 8, 9, LATEST]))
    assert neighbors == [[], [0], [0], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]
    extremes, _ = one_hop(clock([EARLIEST, LATEST]), fanout=-1, key=1, draw=draw, **asked([EARLIEST, LATEST]))
    assert extremes == [[0], [0, 1]]


def test_latest_edges() -> None:
    """The last of those that are not later, ascending in time; a function of nothing random."""
    csr = clock([0, 5, 5, 9])
    for key in range(3):
        found, _ = one_hop(csr, fanout=2, key=key, draw=Draw(times="latest"), **asked([0, 4, 5, 7, 9]))
        assert found == [[0], [0], [1, 2], [1, 2], [2, 3]]


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("draw", [*BEFORE, Draw(times="latest")])
def test_no_edge_from_the_future(typed: bool, draw: Draw) -> None:
    """In three hops, no edge is later than the seed of its tree, and with room for all none that is not is missing."""
    plain = typed_graph(60, 30, 500, 2) if typed else random_graph(60, 600, 2)
    graph = with_times(with_weights(plain, 1, some_zero=False), 4)
    batches = NativeBatches(graph, "in", dict.fromkeys(graph.edges, draw))
    seed_type = "user" if typed else None
    seeds = list(range(40))
    times = [(7 * seed) % (MAX_TIME + 1) for seed in seeds]
    for fanout in (3, -1):
        if fanout == -1 and draw.replace:
            continue
        batch = batches.sample([fanout] * 3, seed_type, seeds, (0, 0, 0), disjoint=True, times=times)
        assert batch.trees is not None
        for i, edge_type in enumerate(batches.edge_types):
            trees = batch.trees[batches.specs[i][0]]
            time_of = graph.times[edge_type].tolist()
            found = zip(batch.cols[i], batch.edge_ids[i], strict=True)
            ahead = [time_of[edge] - times[trees[col]] for col, edge in found]
            assert len(ahead) > 40
            assert max(ahead) <= 0
            assert max(ahead) == 0  # so close that a mistake by one would show


def test_candidates_are_drawn_uniformly() -> None:
    """5 of the 9 edges so far, of 14: a chi-square of inclusions with the covariance of simple random sampling."""
    trials, n, fanout = 12_000, 9, 5
    csr = clock(list(range(14)))
    ids, rows = torch.arange(trials), torch.zeros(trials, dtype=torch.int64)
    times = torch.full((trials,), n - 1)
    how = _C.DrawMethod(times=_C.TimeRule.BEFORE)
    picked = to_tensor(_C.sample_neighbors(csr, ids, rows, fanout, how, 9, False, POOLS[1], None, times)[1])
    counts = np.bincount(picked.numpy(), minlength=14)
    assert counts[n:].sum() == 0
    p = fanout / n
    statistic = ((counts[:n] - trials * p) ** 2).sum() / (trials * p * (1 - p) * n / (n - 1))
    assert stats.chi2.sf(statistic, n - 1) > ALPHA


def test_weighted_candidates_have_their_probabilities() -> None:
    """One pick by weight among the edges so far, whose weights are 1, 2, ..., n."""
    trials, n = 20_000, 6
    csr = clock(list(range(14)))
    ids, rows = torch.arange(trials), torch.zeros(trials, dtype=torch.int64)
    how = _C.DrawMethod(method="weighted", times=_C.TimeRule.BEFORE)
    times = torch.full((trials,), n - 1)
    picked = to_tensor(_C.sample_neighbors(csr, ids, rows, 1, how, 9, False, POOLS[1], None, times)[1])
    counts = np.bincount(picked.numpy(), minlength=n)
    weights = np.arange(1, n + 1)
    assert len(counts) == n
    assert stats.chisquare(counts, trials * weights / weights.sum()).pvalue > ALPHA


# --- the order of rows -----------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 999), dtype=st.sampled_from([torch.int32, torch.int64]), threads=st.integers(1, 3))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_rows_are_sorted_by_time_neighbor_and_id(seed: int, dtype: torch.dtype, threads: int) -> None:
    rng = np.random.default_rng(seed)
    row, col, time = (rng.integers(0, 9, 150) for _ in range(3))
    ids = rng.permutation(600)[:150]
    order = np.lexsort((ids, col, time, row))
    inputs = (torch.from_numpy(a) for a in (row, col, ids))
    weights = torch.arange(150.0)
    arrays = _C.build_csr(*inputs, 9, 9, POOLS[threads], torch.from_numpy(time).to(dtype), weights)
    indptr, indices, edge_ids, times, carried = map(to_tensor, arrays)
    assert times.dtype == torch.int64
    assert indices.tolist() == col[order].tolist()
    assert edge_ids.tolist() == ids[order].tolist()
    assert times.tolist() == time[order].tolist()
    assert carried.tolist() == weights[torch.from_numpy(order)].tolist()
    csr = _C.Csr(indptr, indices, edge_ids, 9, times)
    csr.validate(POOLS[threads])
    assert not csr.sorted_by_neighbor
    assert _C.Csr(indptr, indices, edge_ids, 9).sorted_by_neighbor


def test_rows_out_of_order_are_found() -> None:
    indptr, indices = torch.tensor([0, 2]), torch.tensor([0, 1])
    _C.Csr(indptr, indices, None, 2, torch.tensor([3, 3])).validate(POOLS[1])
    with pytest.raises(InvalidArgumentError, match=r"row 0 is not sorted by \(time, neighbor id, edge id\)"):
        _C.Csr(indptr, indices, None, 2, torch.tensor([3, 2])).validate(POOLS[1])
    with pytest.raises(InvalidArgumentError, match="row 0 is not sorted"):
        _C.Csr(indptr, indices.flip(0), None, 2, torch.tensor([3, 3])).validate(POOLS[1])


# --- what cannot be --------------------------------------------------------------------------------------------------


def test_draws_that_contradict_themselves() -> None:
    csr, options = clock([0, 1]), asked([5])
    for draw in (Draw(replace=True, times="latest"), Draw("weighted", times="latest"), Draw("labor", times="latest")):
        with pytest.raises(InvalidArgumentError, match="times: the latest edges are taken and not drawn"):
            one_hop(csr, fanout=1, key=0, draw=draw, **options)


def test_times_that_are_missing_or_wrong() -> None:
    indptr, indices = torch.tensor([0, 2]), torch.tensor([0, 1])
    plain, timed = _C.Csr(indptr, indices, None, 2), clock([0, 1])
    draw, node = Draw(times="before"), torch.tensor([0])
    with pytest.raises(InvalidArgumentError, match=r"times: .* graph has no times"):
        one_hop(plain, node, 1, 0, draw, times=node)
    with pytest.raises(InvalidArgumentError, match=r"times: .* seeds have no times"):
        one_hop(timed, node, 1, 0, draw)
    for bad in (torch.tensor([0, 1]), torch.tensor([0], dtype=torch.int32)):
        with pytest.raises(InvalidArgumentError, match=r"times: expected int64 \[1\]"):
            one_hop(timed, node, 1, 0, draw, times=bad)
    for bad, match in (
        (torch.tensor([0.0, 1.0]), "times: expected dtype int64"),
        (torch.tensor([0]), r"times: expected \[2\]"),
        (torch.tensor([0, 1], dtype=torch.int32), "times: expected dtype int64"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            _C.Csr(indptr, indices, None, 2, bad)
    with pytest.raises(InvalidArgumentError, match="edge_times: expected dtype int64 or int32"):
        _C.build_csr(indices, indices, None, 2, 2, POOLS[1], torch.tensor([0.0, 1.0]))
    graph = native_graph(with_times(random_graph(5, 0, 0), 0), None, "out")  # times, but no edges
    assert one_hop(graph, node, 3, 0, draw, times=node) == ([[]], [[]])

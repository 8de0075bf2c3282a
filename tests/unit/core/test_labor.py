"""LABOR-0: one random number a neighbor, shared by the frontier; counts and inclusion as of uniform sampling.

Statistical tests share one false alarm in a million among at most ``NUM_P_VALUES``; seeds are fixed besides.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.errors import InvalidArgumentError
from tests.support import reference
from tests.support.graphs import random_graph
from tests.support.hops import POOLS, NativeBatches, native_draw, one_hop
from tests.support.reference import Draw, absorb

NUM_P_VALUES = 10
ALPHA = 1e-6 / NUM_P_VALUES
LABOR = Draw("labor")


def csr_of(rows: list[list[int]], num_cols: int = 10_000) -> _C.Csr:
    """Rows of neighbors, each ascending."""
    indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    dtype = torch.int32 if num_cols < 2**31 else torch.int64
    return _C.Csr(indptr, torch.tensor([v for row in rows for v in row], dtype=dtype), None, num_cols)


@given(
    rows=st.lists(st.lists(st.integers(0, 60), max_size=150).map(sorted), min_size=1, max_size=6),
    fanout=st.sampled_from([-1, 1, 2, 5, 20, 96, 97, 120]),
    key=st.integers(0, (1 << 64) - 1),
    narrow=st.booleans(),
    threads=st.integers(1, 4),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_picks_equal_the_definition(rows: list[list[int]], fanout: int, key: int, narrow: bool, threads: int) -> None:
    """Repeated edges, too; positions are seen through edge ids, which are positions of the whole."""
    csr, ids = csr_of(rows, 10_000 if narrow else 2**40), torch.arange(len(rows))
    starts = [0, *np.cumsum([len(row) for row in rows]).tolist()]
    expected = [reference.pick_labor(key, v, row, fanout) for v, row in enumerate(rows)]
    neighbors, edges = one_hop(csr, ids, fanout, key, LABOR, threads=threads)
    assert edges == [[starts[v] + i for i in picks] for v, picks in enumerate(expected)]
    assert neighbors == [[rows[v][i] for i in picks] for v, picks in enumerate(expected)]
    trees = torch.arange(len(rows)) % 3
    in_trees, _ = one_hop(csr, ids, fanout, key, LABOR, trees=trees, threads=threads)
    keys = [absorb(key, tree) for tree in trees.tolist()]
    assert in_trees == [[row[i] for i in reference.pick_labor(keys[v], v, row, fanout)] for v, row in enumerate(rows)]


@pytest.mark.parametrize("num_ids", [1, 2, 7, 40, 3000])
def test_long_rows_equal_the_definition(num_ids: int) -> None:
    """With many repeated edges, the numbers of a row are far from even: nearly all are small, or none is."""
    rng = np.random.default_rng(num_ids)
    lengths = (63, 64, 65, 256, 700, 1500)
    rows = [np.sort(rng.integers(0, num_ids, length)).tolist() for length in lengths for _ in range(3)]
    starts = np.cumsum([0, *map(len, rows)])
    csr, ids = csr_of(rows), torch.arange(len(rows))
    for key, fanout in itertools.product(range(4), (1, 5, 20, 62, 300)):
        _, edges = one_hop(csr, ids, fanout, key, LABOR)
        picks = [[edge - start for edge in row] for row, start in zip(edges, starts.tolist(), strict=False)]
        for v, (row, picked) in enumerate(zip(rows, picks, strict=True)):
            assert picked == reference.pick_labor(key, v, row, fanout)


def test_nodes_with_the_same_neighbors_pick_the_same() -> None:
    """Whatever the nodes' own ids; a node that sees more neighbors picks the same of those where numbers allow."""
    rows = [list(range(100))] * 5 + [list(range(50))]
    neighbors, _ = one_hop(csr_of(rows), torch.arange(6), 10, 5, LABOR)
    assert all(row == neighbors[0] for row in neighbors[:5])
    shared = [v for v in neighbors[0] if v < 50]
    assert set(shared) <= set(neighbors[5])
    assert neighbors[0] == sorted(neighbors[0])
    in_trees, _ = one_hop(csr_of(rows), torch.arange(6), 10, 5, LABOR, trees=torch.arange(6))
    assert len({tuple(row) for row in in_trees}) == 6


def test_fewer_nodes_than_uniform_sampling() -> None:
    """What LABOR is for: the same number of edges, fewer nodes."""
    graph, seeds = random_graph(3000, 60_000, 1), list(range(300))
    found = {}
    for draw in (LABOR, Draw()):
        batch = NativeBatches(graph, "out", {None: draw}).sample([8, 8], None, seeds, (3, 0, 0))
        found[draw.method] = batch.num_sampled_edges[0][0], len(batch.nodes[0])
    assert found["labor"][0] == found["uniform"][0]
    assert found["labor"][1] < 0.97 * found["uniform"][1]


@pytest.mark.parametrize(("degree", "fanout"), [(20, 7), (150, 110), (9, 1)])
def test_each_neighbor_is_included_with_the_same_probability(degree: int, fanout: int) -> None:
    """One node over many batches. Counts have the covariance of simple random sampling, N p (1 - p) d / (d - 1)
    (I - J / d), so this sum is chi-square with d - 1 degrees."""
    trials = 6000
    csr, node, how = csr_of([list(range(0, 7 * degree, 7))]), torch.tensor([0]), native_draw(LABOR)
    counts = np.zeros(degree)
    for trial in range(trials):
        key = _C.draw_key(1, 0, trial, 0, 0)
        picked = to_tensor(_C.sample_neighbors(csr, node, None, fanout, how, key, False, POOLS[1])[1])
        assert len(picked) == fanout
        counts[picked.numpy() // 7] += 1
    p = fanout / degree
    statistic = ((counts - trials * p) ** 2).sum() / (trials * p * (1 - p) * degree / (degree - 1))
    assert stats.chi2.sf(statistic, degree - 1) > ALPHA
    assert stats.chi2.cdf(statistic, degree - 1) > ALPHA


@pytest.mark.parametrize("row", [[5, 5, 5], [1, 5, 5, 5, 9], [4] * 100], ids=["one", "among-others", "many"])
def test_edges_to_one_neighbor_are_as_likely(row: list[int]) -> None:
    """Parallel edges share a number; which of them fit is random, and of each node anew."""
    trials, fanout = 20_000, max(1, len(row) // 4)
    csr, nodes, how = csr_of([row]), torch.arange(trials), native_draw(LABOR)
    rows = torch.zeros(trials, dtype=torch.int64)
    picked = to_tensor(_C.sample_neighbors(csr, nodes, rows, fanout, how, 9, True, POOLS[1])[2]).view(trials, fanout)
    shared = max(set(row), key=row.count)
    parallel = np.array([i for i, neighbor in enumerate(row) if neighbor == shared])
    counts = np.array([0] * len(parallel))
    for key in range(20):  # with another number of the neighbor in each
        found = _C.sample_neighbors(csr, nodes[:1000], rows[:1000], fanout, how, key, True, POOLS[1])[2]
        counts += np.bincount(to_tensor(found).numpy(), minlength=len(row))[parallel]
    assert stats.chisquare(counts).pvalue > ALPHA
    if fanout > 1:  # pairs: the second edge among the others
        together = ((picked == 0).any(1) & (picked == 1).any(1)).sum()
        chance = fanout * (fanout - 1) / (len(row) * (len(row) - 1))
        assert stats.binomtest(int(together), trials, chance).pvalue > ALPHA


def test_nodes_that_share_no_neighbor_are_independent() -> None:
    """Pairs of the first picks of two nodes with neighbors of their own."""
    trials = 8000
    csr, ids, how = csr_of([[0, 1, 2, 3], [4, 5, 6, 7]]), torch.arange(2), native_draw(LABOR)
    counts = np.zeros((4, 4))
    for trial in range(trials):
        key = _C.draw_key(2, trial, 0, 0, 0)
        first, second = to_tensor(_C.sample_neighbors(csr, ids, None, 1, how, key, False, POOLS[1])[1]).tolist()
        counts[first, second - 4] += 1
    assert stats.chisquare(counts.reshape(-1)).pvalue > ALPHA


def test_replacement_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="replace: LABOR samples without replacement"):
        one_hop(csr_of([[0]]), torch.tensor([0]), 1, 0, Draw("labor", replace=True))

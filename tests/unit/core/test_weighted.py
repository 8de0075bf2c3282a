"""Sampling by weight: bit by bit as defined, with the probabilities that it should have, and what it refuses.

Every statistical test compares p-values with ``ALPHA``, which shares one false alarm in a million evenly among all
p-values of this file; seeds are fixed besides, so a run never differs from the last.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graphlearn_dist import _C
from graphlearn_dist.core import to_optional_tensor, to_tensor
from graphlearn_dist.errors import InvalidArgumentError, PartitionFormatError
from tests.support import reference
from tests.support.graphs import WEIGHT_DTYPES
from tests.support.hops import POOLS, native_draw, one_hop, weighted_csr
from tests.support.reference import Draw

NUM_P_VALUES = 140
ALPHA = 1e-6 / NUM_P_VALUES
DENORMAL = 5e-324


def sums_of(rows: list[list[float]], dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor | None]:
    indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    weights = torch.tensor([weight for row in rows for weight in row], dtype=dtype)
    sums, counts = _C.sum_weights(indptr, weights, POOLS[2])
    return to_tensor(sums), to_optional_tensor(counts)


def ladder(rows: list[list[float]]) -> _C.Csr:
    """Row v has the neighbors 0, 1, ... of the given weights: a neighbor is its position."""
    indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    indices = torch.tensor([i for row in rows for i in range(len(row))], dtype=torch.int32)
    weights = torch.tensor([weight for row in rows for weight in row], dtype=torch.float64)
    return weighted_csr(indptr, indices, None, 10_000, None, weights)


LARGEST = 1.7976931348623157e308
WEIGHT = st.one_of(
    st.just(0.0),
    st.floats(1e-3, 1e3),
    st.floats(0, LARGEST),
    st.sampled_from([-0.0, 1.0, 1e-30, 1e12, 1e300, DENORMAL, 2 * DENORMAL, LARGEST]),
)


@given(
    rows=st.lists(st.lists(WEIGHT, max_size=40), min_size=1, max_size=5),
    fanout=st.sampled_from([-1, 1, 2, 5, 20]),
    replace=st.booleans(),
    key=st.integers(0, (1 << 64) - 1),
    threads=st.integers(1, 4),
)
@settings(max_examples=250, deadline=None, derandomize=True)
def test_picks_equal_the_definition(rows: Any, fanout: int, replace: bool, key: int, threads: int) -> None:
    """Weights of all sizes, which no sum of doubles tells apart, zeros, the smallest and the largest doubles."""
    draw = Draw("weighted", replace)
    neighbors, _ = one_hop(ladder(rows), torch.arange(len(rows)), fanout, key, draw, threads=threads)
    assert neighbors == [reference.pick_weighted(key, v, row, fanout, replace) for v, row in enumerate(rows)]


@pytest.mark.parametrize("fanout", [95, 96, 97, 150])
def test_large_fanouts_equal_the_definition(fanout: int) -> None:
    """Both ways of finding repeated picks, and rows where most picks come from the race."""
    draw = torch.Generator().manual_seed(0)
    rows = [(10.0 ** (torch.rand(400, generator=draw) * span)).tolist() for span in (0, 2, 8)]
    neighbors, _ = one_hop(ladder(rows), torch.arange(3), fanout, 11, Draw("weighted"))
    assert neighbors == [reference.pick_weighted(11, v, row, fanout, False) for v, row in enumerate(rows)]
    assert [len(set(row)) for row in neighbors] == [fanout] * 3


def test_rows_shorter_than_the_fanout_and_zeros() -> None:
    """All edges of positive weight in row order; none where no weight is positive."""
    rows = [[0.0, 2.0, 0.0, 1.0], [0.0, 0.0], [], [3.0]]
    ids = torch.arange(4)
    for fanout in (2, 5, -1):
        assert one_hop(ladder(rows), ids, fanout, 3, Draw("weighted"))[0] == [[1, 3], [], [], [0]]
    many, _ = one_hop(ladder(rows), ids, 50, 3, Draw("weighted", replace=True))
    assert [len(row) for row in many] == [50, 0, 0, 50]
    assert [set(row) for row in many] == [{1, 3}, set(), set(), {0}]
    assert len(one_hop(ladder(rows), ids, 1, 3, Draw("weighted"))[0][0]) == 1


# --- probabilities ---------------------------------------------------------------------------------------------------


def successive(weights: tuple[float, ...], size: int) -> dict[tuple[int, ...], float]:
    """Probability of each ordered sample of successive sampling, by enumeration."""
    found = {}
    for sample in itertools.permutations(range(len(weights)), size):
        left, probability = sum(map(Fraction, weights)), Fraction(1)
        for i in sample:
            probability *= Fraction(weights[i]) / left
            left -= Fraction(weights[i])
        found[sample] = float(probability)
    return found


def picks_of(weights: tuple[float, ...], fanout: int, trials: int, seed: int, *, replace: bool = False) -> np.ndarray:
    """[trials, fanout] picked positions, one node a trial."""
    csr = ladder([list(weights)] * 1)
    ids, rows = torch.arange(trials), torch.zeros(trials, dtype=torch.int64)
    key = _C.draw_key(seed, 0, 0, 0, 0)
    how = native_draw(Draw("weighted", replace))
    picked = to_tensor(_C.sample_neighbors(csr, ids, rows, fanout, how, key, False, POOLS[1])[1])
    return picked.view(trials, -1).numpy()


def p_of(counts: np.ndarray, expected: np.ndarray) -> float:
    """The smaller of two p-values: of the counts that are expected 8 times or more, and of the others together being
    as many as they are (Poisson)."""
    rare = expected < 8
    p_of_rare = float(stats.poisson.sf(counts[rare].sum() - 1, expected[rare].sum())) if rare.any() else 1.0
    counts, expected = counts[~rare], expected[~rare]
    if len(counts) < 2:
        return p_of_rare
    return min(p_of_rare, float(stats.chisquare(counts, expected * (counts.sum() / expected.sum())).pvalue))


ROWS = [
    (1.0, 1.0, 1.0, 1.0, 1.0),
    (1.0, 2.0, 3.0, 4.0, 10.0),
    (0.1, 7.0, 0.5, 0.5, 0.2),
    # A few edges have nearly everything: picks come from the race.
    (1e-5, 1.0, 3e-5, 2e-5, 1e-5),
    (1e-5, 1.0, 3e-9, 2e-5, 1e-9),
]


@pytest.mark.parametrize("weights", ROWS)
@pytest.mark.parametrize("fanout", [1, 2, 3, 4])
def test_ordered_samples_have_their_probabilities(weights: tuple[float, ...], fanout: int) -> None:
    """Which edges are picked and in what order, against the enumeration of successive sampling."""
    trials = 40_000
    expected = successive(weights, fanout)
    index = {sample: i for i, sample in enumerate(expected)}
    counts = np.bincount([index[tuple(row)] for row in picks_of(weights, fanout, trials, 1).tolist()], None, len(index))
    assert p_of(counts, trials * np.array(list(expected.values()))) > ALPHA


@pytest.mark.parametrize("weights", [(1.0, 2.0, 3.0, 4.0), (0.5, 0.0, 1e-3, 7.0, 2.0)])
def test_picks_with_replacement_are_independent(weights: tuple[float, ...]) -> None:
    """Pairs of successive picks of one node, and of picks of successive nodes."""
    trials, n = 40_000, len(weights)
    picked = picks_of(weights, 3, trials, 2, replace=True)
    share = np.array(weights) / sum(weights)
    expected = np.outer(share, share).reshape(-1)
    kept = expected > 0
    for first, second in (
        (picked[:, 0], picked[:, 1]),
        (picked[:, 1], picked[:, 2]),
        (picked[:-1:2, 0], picked[1::2, 0]),
    ):
        counts = np.bincount(first * n + second, minlength=n * n)
        assert counts[~kept].sum() == 0
        assert p_of(counts[kept], len(first) * expected[kept]) > ALPHA


def test_exponential_numbers() -> None:
    """The race's clocks: with equal tiny weights beside one huge one, each order of the rest is equally likely."""
    weights = (1e-12, 1e-12, 1.0, 1e-12, 1e-12)
    trials = 24_000
    picked = picks_of(weights, 4, trials, 3)
    assert (picked[:, 0] == 2).all()
    index = {order: i for i, order in enumerate(itertools.permutations((0, 1, 3, 4), 3))}
    counts = np.bincount([index[tuple(row)] for row in picked[:, 1:].tolist()], minlength=24)
    assert float(stats.chisquare(counts).pvalue) > ALPHA


# --- weights that no sum of doubles tells apart ----------------------------------------------------------------------

# Each row in its order and reversed: what is drawn does not depend on the order of neighbors. Positions are named by
# those of the first order.
FAR_APART = [
    (1e16, 1.0, 3.0),
    (1e30, 2e-30, 1e-30),
    (1e300, 1.0, 2.0, 5.0),
    (3.0, 1e308, 1e308, 1.5e308, 1.0),  # sum to infinity
    (DENORMAL, 2 * DENORMAL, 3 * DENORMAL),
    (1.0, DENORMAL, 3 * DENORMAL, 1e-310),
    (1e16, *[1.0] * 4),
]


@pytest.mark.parametrize("weights", FAR_APART, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_weights_far_apart_have_their_probabilities(weights: tuple[float, ...], reverse: bool) -> None:
    """All but one of the row, in order, against the enumeration with exact numbers."""
    trials, fanout = 20_000, len(weights) - 1
    order = weights[::-1] if reverse else weights
    expected = successive(order, fanout)
    index = {sample: i for i, sample in enumerate(expected)}
    counts = np.bincount([index[tuple(row)] for row in picks_of(order, fanout, trials, 5).tolist()], None, len(index))
    assert p_of(counts, trials * np.array(list(expected.values()))) > ALPHA


def test_small_weights_are_drawn_whatever_the_order_of_neighbors() -> None:
    """The rows of the report: edges that a running sum loses."""
    rows = [[1e16] + [1.0] * 10, [1.0] * 10 + [1e16], [1e30, 1e-30], [1e-30, 1e30]]
    ids = torch.arange(4)
    for fanout, lengths in ((5, [5, 5, 2, 2]), (-1, [11, 11, 2, 2]), (20, [11, 11, 2, 2])):
        neighbors, _ = one_hop(ladder(rows), ids, fanout, 3, Draw("weighted"))
        assert [len(set(row)) for row in neighbors] == lengths


@pytest.mark.parametrize("reverse", [False, True])
def test_draws_with_replacement_among_edges_of_one_heavy_row(reverse: bool) -> None:
    """Light edges that weigh a fifth together, alike among themselves, in a row that is searched by bisection."""
    n = 4000
    weights = [4.0 * n, *[1.0] * n]
    order = weights[::-1] if reverse else weights
    picked = picks_of(tuple(order), 1, 40_000, 6, replace=True)[:, 0]
    heavy = n if reverse else 0
    assert stats.binomtest(int((picked != heavy).sum()), 40_000, 1 / 5).pvalue > ALPHA
    light = picked[picked != heavy] - (0 if reverse else 1)
    assert float(stats.chisquare(np.bincount(light // 400, minlength=10)).pvalue) > ALPHA


@pytest.mark.parametrize("replace", [False, True])
def test_the_beginning_of_a_row_before_its_heavy_edge(replace: bool) -> None:
    """Of a row in the order of times, a node sees edges that have no whole unit, or few: it draws by their weights."""
    trials = 20_000
    for weights in ((1.0, 2.0, 5.0, 1e30), (1.0, 2.0, 5.0, 3e15), (1e-200, 2e-200, 5e-200, LARGEST)):
        indptr, indices = torch.tensor([0, 4]), torch.arange(4, dtype=torch.int32)
        csr = weighted_csr(indptr, indices, None, 10, torch.arange(4), torch.tensor(weights, dtype=torch.float64))
        ids, rows, times = torch.arange(trials), torch.zeros(trials, dtype=torch.int64), torch.full((trials,), 2)
        how = native_draw(Draw("weighted", replace, "before"))
        found = _C.sample_neighbors(csr, ids, rows, 2, how, 77, False, POOLS[1], None, times)
        pairs = to_tensor(found[1]).view(trials, 2).tolist()
        seen = [weight / 8 / weights[0] for weight in weights[:3]]
        expected = successive(tuple(seen), 2)
        if replace:
            expected = {(i, j): seen[i] * seen[j] for i in range(3) for j in range(3)}
        index = {sample: i for i, sample in enumerate(expected)}
        counts = np.bincount([index[tuple(pair)] for pair in pairs], None, len(index))
        assert p_of(counts, trials * np.array(list(expected.values()))) > ALPHA


# --- counted weights -------------------------------------------------------------------------------------------------


def counted(packed: torch.Tensor) -> tuple[list[int], set[int]]:
    """The numbers of units in sums of one row, and which units those are."""
    bits = packed.view(torch.int64)
    return (bits & (2**52 - 1)).tolist(), set((bits >> 52).tolist())


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_sums_count_units_exactly(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = [(10 ** (3 * torch.rand(n, generator=draw))).to(dtype).tolist() for n in (0, 1, 7, 0, 300)]
    sums, counts = sums_of(rows, dtype)
    assert counts is None
    for row, packed in zip(rows, sums.split(list(map(len, rows))), strict=True):
        if row:
            numbers, units = counted(packed)
            assert numbers == reference.CountedRow.of(row, row).sums
            assert len(units) == 1
            assert 2**51 - len(row) <= numbers[-1] < 2**52


def test_a_rows_unit_does_not_depend_on_the_order() -> None:
    row = [10.0**i for i in range(-30, 30)]
    units = [counted(sums_of([order])[0])[1] for order in (row, row[::-1], row[20:] + row[:20])]
    assert units[0] == units[1] == units[2]


def test_counts_of_positive_weights() -> None:
    """However small beside the others; -0.0 is 0."""
    _, counts = sums_of([[0.0, 1.0, -0.0], [], [1e17, DENORMAL, 0.0], [0.5]])
    assert counts is not None
    assert counts.dtype == torch.int32
    assert counts.tolist() == [0, 1, 1, 1, 2, 2, 1]


NAN, INF = float("nan"), float("inf")
INDPTR = torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (torch.tensor([1, NAN]), r"edge_weights\[1\]: .* >= 0, got nan"),
        (torch.tensor([INF, 1]), r"edge_weights\[0\]: .* got inf"),
        (torch.tensor([1, -0.5]), r"edge_weights\[1\]: .* got -0.5"),
        (torch.tensor([1, -0.5], dtype=torch.float16), r"edge_weights\[1\]: .* got -0.5"),
        (torch.tensor([1, INF], dtype=torch.float16), r"edge_weights\[1\]: .* got inf"),
        (torch.tensor([NAN, 1], dtype=torch.bfloat16), r"edge_weights\[0\]: .* got nan"),
        (torch.tensor([1.0]), r"edge_weights: expected \[2\]"),
        (torch.tensor([[1.0, 2.0]]), r"edge_weights: expected \[2\]"),
        (torch.tensor([1, 2]), "edge_weights: expected dtype float16"),
    ],
)
def test_weights_that_make_no_sense(weights: torch.Tensor, match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        _C.sum_weights(INDPTR, weights, POOLS[1])
    ends = torch.tensor([0, 0])
    with pytest.raises(InvalidArgumentError, match=match):
        _C.build_csr(ends, ends, None, 1, 1, POOLS[1], None, weights)


def test_offsets_that_do_not_ascend() -> None:
    weights = torch.ones(3)
    with pytest.raises(PartitionFormatError, match="expected ascending offsets within 3 edges, got 0 and 4"):
        _C.sum_weights(torch.tensor([0, 4, 3]), weights, POOLS[1])
    with pytest.raises(InvalidArgumentError, match="start at 0, got 1"):
        _C.sum_weights(torch.tensor([1, 3]), weights, POOLS[1])


def test_graphs_without_weights_or_with_foreign_sums() -> None:
    indptr, indices = torch.tensor([0, 2]), torch.tensor([0, 1])
    plain = _C.Csr(indptr, indices, None, 2)
    with pytest.raises(InvalidArgumentError, match=r"with_weight, strategy: .* no edge weights"):
        one_hop(plain, torch.tensor([0]), 1, 0, Draw("weighted"))
    weights = torch.ones(2)
    sums_alone = _C.Csr(indptr, indices, None, 2, None, None, *sums_of([[1.0, 1.0]]))
    with pytest.raises(InvalidArgumentError, match=r"with_weight, strategy: .* no edge weights"):
        one_hop(sums_alone, torch.tensor([0]), 1, 0, Draw("weighted"))
    for sums, counts, match in (
        (torch.tensor([1.0, 2.0]), None, "weight_sums: expected dtype float64"),
        (torch.tensor([1.0]).double(), None, r"weight_sums: expected \[2\]"),
        (torch.tensor([1.0, 2.0]).double(), torch.tensor([1, 2]), "positive_counts: expected dtype int32"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            _C.Csr(indptr, indices, None, 2, None, weights, sums, counts)
    for bad in ([1.5, 1.0], [-1.0, 1.0], [1.0, 2.0], [INF, INF], [NAN, NAN]):
        csr = _C.Csr(indptr, indices, None, 2, None, weights, torch.tensor(bad).double())
        with pytest.raises(InvalidArgumentError, match="weight_sums: row 0"):
            csr.validate(POOLS[1])

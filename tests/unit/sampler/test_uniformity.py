"""Chi-square tests of what is random: picks, and the epoch's order.

Every test compares p-values with ``ALPHA``, which shares one false alarm in a million evenly among all p-values of
this file; seeds are fixed besides, so a run never differs from the last.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.sampler import SeedSchedule

NUM_P_VALUES = 80
ALPHA = 1e-6 / NUM_P_VALUES
POOL = _C.ThreadPool(1)
SOURCES = ["nodes", "batches", "epochs", "seeds", "hops", "edge types"]


def equal_rows(num_nodes: int, degree: int) -> Any:
    """Every node has the neighbors 0 to degree - 1: a neighbor is its position."""
    indices = torch.arange(degree, dtype=torch.int32).repeat(num_nodes)
    return _C.Csr(torch.arange(num_nodes + 1) * degree, indices, None, max(degree, num_nodes))


def picks(source: str, trials: int, degree: int, fanout: int, *, replace: bool = False) -> np.ndarray:
    """[trials, fanout] picked positions; ``source`` says what distinguishes one trial from the next."""

    def sample(num_nodes: int, *counter: int) -> torch.Tensor:
        key = _C.draw_key(*counter)
        ids = torch.arange(num_nodes)
        return to_tensor(
            _C.sample_neighbors(
                equal_rows(num_nodes, degree), ids, None, fanout, _C.DrawMethod(replace=replace), key, False, POOL
            )[1]
        )

    if source == "nodes":
        return sample(trials, 0, 0, 0, 0, 0).view(trials, fanout).numpy()
    place = ["seeds", "epochs", "batches", "hops", "edge types"].index(source)
    found = []
    for trial in range(-(-trials // 4)):  # four nodes a trial, to take less time
        counter = [0] * 5
        counter[place] = trial
        found.append(sample(4, *counter))
    return torch.cat(found).view(-1, fanout)[:trials].numpy()


def p_of_counts(counts: np.ndarray) -> float:
    """P-value of equal expected counts."""
    return float(stats.chisquare(counts.reshape(-1)).pvalue)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("degree", "fanout"), [(20, 7), (150, 110)])
def test_each_position_is_included_equally_often(source: str, degree: int, fanout: int) -> None:
    """Without replacement, with both ways of finding repeated picks. Inclusions of one trial are correlated; the
    covariance of the counts is N p (1 - p) d / (d - 1) (I - J / d), so this sum is chi-square with d - 1 degrees."""
    trials = 12_000
    counts = np.bincount(picks(source, trials, degree, fanout).reshape(-1), minlength=degree)
    p = fanout / degree
    statistic = ((counts - trials * p) ** 2).sum() / (trials * p * (1 - p) * degree / (degree - 1))
    assert stats.chi2.sf(statistic, degree - 1) > ALPHA
    assert stats.chi2.cdf(statistic, degree - 1) > ALPHA  # too even is not random either


@pytest.mark.parametrize("source", ["nodes", "batches", "seeds"])
def test_each_subset_is_equally_likely(source: str) -> None:
    """All 495 subsets of 4 out of 12, and with them all pairs and triples."""
    degree, fanout, trials = 12, 4, 20_000
    chosen = np.sort(picks(source, trials, degree, fanout), axis=1)
    index = {subset: i for i, subset in enumerate(itertools.combinations(range(degree), fanout))}
    counts = np.bincount([index[tuple(row)] for row in chosen.tolist()], minlength=len(index))
    assert len(counts) == math.comb(degree, fanout)
    assert p_of_counts(counts) > ALPHA


@pytest.mark.parametrize(("degree", "fanout"), [(40, 10), (120, 100)])
def test_each_pair_is_included_equally_often(degree: int, fanout: int) -> None:
    """Each of the pairs is binomial; the worst of them may not deviate more than one in a million worst ones does."""
    trials = 10_000
    chosen = np.zeros((trials, degree), dtype=np.int64)
    np.put_along_axis(chosen, picks("nodes", trials, degree, fanout), 1, axis=1)
    together = (chosen.T @ chosen)[np.triu_indices(degree, 1)]
    p = fanout * (fanout - 1) / (degree * (degree - 1))
    worst = np.abs(together - trials * p).max() / math.sqrt(trials * p * (1 - p))
    assert 2 * stats.norm.sf(worst) * len(together) > ALPHA


@pytest.mark.parametrize("source", SOURCES)
def test_picks_with_replacement_are_uniform_and_independent(source: str) -> None:
    degree = 13
    chosen = picks(source, 12_000, degree, 3, replace=True)
    for first, second in ((0, 1), (1, 2)):
        assert p_of_counts(np.bincount(chosen[:, first] * degree + chosen[:, second], minlength=degree**2)) > ALPHA


@pytest.mark.parametrize("replace", [False, True])
def test_neighboring_nodes_batches_and_hops_are_independent(replace: bool) -> None:
    """The first picks of trials that differ by one in one number of the counter, as a contingency table of pairs
    that do not overlap."""
    degree, trials = 12, 12_000
    for source in SOURCES:
        first = picks(source, trials, degree, 3, replace=replace)[:, 0]
        first = first[: trials // 4 * 4].reshape(-1, 4)[:, 0] if source != "nodes" else first
        span = degree if replace else degree - 2  # Floyd's first draw is below degree - fanout + 1
        counts = np.bincount(first[0:-1:2] * span + first[1::2], minlength=span**2)
        assert p_of_counts(counts) > ALPHA, source


def orders(n: int, epochs: int, *, by_seed: bool) -> np.ndarray:
    """[epochs, n] items by position."""
    return np.stack([
        SeedSchedule(n, n, shuffle=True, seed=i if by_seed else 5).positions(0 if by_seed else i, 0).numpy()
        for i in range(epochs)
    ])  # fmt: skip


@pytest.mark.parametrize("by_seed", [False, True])
@pytest.mark.parametrize("n", [16, 19, 33])
def test_each_item_comes_equally_often_at_each_position(n: int, by_seed: bool) -> None:
    """Counts of a permutation matrix: rows and columns add up, which leaves (n - 1)^2 degrees of freedom."""
    epochs = 8000
    found = orders(n, epochs, by_seed=by_seed)
    counts = np.zeros((n, n))
    for position in range(n):
        counts[position] = np.bincount(found[:, position], minlength=n)
    statistic = ((counts - epochs / n) ** 2).sum() / (epochs / n) * (n - 1) / n
    assert stats.chi2.sf(statistic, (n - 1) ** 2) > ALPHA
    for position in (0, n // 2, n - 2):  # ordered pairs of items that stand side by side
        pairs = found[:, position] * n + found[:, position + 1]
        counts_of_pairs = np.bincount(pairs, minlength=n * n).reshape(n, n)
        assert counts_of_pairs.trace() == 0
        assert p_of_counts(counts_of_pairs[~np.eye(n, dtype=bool)]) > ALPHA

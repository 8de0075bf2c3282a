"""Which batches: shared out and cut without being listed; and the order of an epoch.

Statistical tests share one false alarm in a million evenly among at most ``NUM_P_VALUES``; seeds are fixed besides.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.sampler.epochs.schedule import BatchIndices, BatchShare, SeedSchedule
from tests.support import reference

NUM_P_VALUES = 130
ALPHA = 1e-6 / NUM_P_VALUES
SMALL = 1024  # up to here the order is that of Fisher and Yates


@st.composite
def some_indices(draw: st.DrawFn) -> BatchIndices:
    """With and without single batches before a range, which may be empty."""
    single = tuple(sorted(draw(st.sets(st.integers(0, 20), max_size=6))))
    start = draw(st.integers(single[-1] + 1 if single else 0, 30))
    return BatchIndices(start, start + draw(st.integers(-3, 30)), draw(st.integers(1, 5)), single)


@given(some_indices(), st.integers(0, 12) | st.none(), st.integers(0, 30) | st.none(), st.integers(1, 6))
def test_slices_are_those_of_a_list(indices: BatchIndices, first: Any, stop: Any, step: int) -> None:
    cut, listed = indices[first:stop:step], list(indices)
    assert isinstance(cut, BatchIndices)
    assert list(cut) == listed[first:stop:step]
    assert (len(cut), len(indices)) == (len(list(cut)), len(listed))
    assert [indices[place - len(listed)] for place in range(len(listed))] == listed


@given(some_indices())
def test_places(indices: BatchIndices) -> None:
    places = {index: place for place, index in enumerate(indices)}
    for index in range(-2, 70):
        if index in places:
            assert indices.place_of(index) == places[index]
        else:
            with pytest.raises(InvalidArgumentError, match=f"index: expected one of .*, got {index}"):
                indices.place_of(index)


@given(some_indices(), *[st.integers(1, 5)] * 3, st.integers(0, 50), st.integers(0, 30))
def test_shares(indices: BatchIndices, size: int, count: int, workers: int, begin: int, num_done: int) -> None:
    listed = list(indices)
    groups = [listed[at : at + size] for at in range(0, len(listed), size)]
    for turn in range(count):
        share = BatchShare(indices, size, turn, count, begin)
        kept = [[index for index in group if listed.index(index) >= begin] for group in groups[turn::count]]
        assert [list(group) for group in share.groups()] == [group for group in kept if group]
        own = [index for group in kept for index in group]
        assert (list(share), len(share), share[: len(own) // 2]) == (own, len(own), own[: len(own) // 2])
        assert list(share.rest(num_done)) == own[num_done:]
        for index in listed:
            if index in own:
                place = share.group_of(index)
                assert index in groups[turn + place * count]
                assert index in share.divided(place % workers, workers)
            else:
                with pytest.raises(InvalidArgumentError, match=f"index: expected one of .*, got {index}"):
                    share.group_of(index)
        assert sorted(index for worker in range(workers) for index in share.divided(worker, workers)) == own
        of_worker = share.divided(workers - 1, workers)
        assert list(of_worker.rest(num_done)) == list(of_worker)[num_done:]


@pytest.mark.parametrize("bad", [(0,), (1, -1), (1, 0, 0), (1, 0, 1, -1)])
def test_no_such_share(bad: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="share: expected size and step of at least 1"):
        BatchShare(BatchIndices(0, 5), *bad)


def test_in_words() -> None:
    assert str(BatchShare(BatchIndices(0, 9), 2, 1, 2)) == "2, 3, 6, 7"
    assert str(BatchIndices(0, 0)) == "none"
    assert str(BatchIndices(5, 12, 3, (0, 2))) == "0, 2, 5, 8, ..., 11"
    assert str(BatchIndices(5, 9, 3, (0, 2))) == "0, 2, 5, 8"


@pytest.mark.parametrize(
    "bad", [(-1, 3), (3, 9, 0), (3, 9, 1, (2, 2)), (3, 9, 1, (3,)), (3, 9, 1, (-2,)), (3, 9, 1, {}), (3.0, 9)]
)
def test_what_does_not_ascend_is_refused(bad: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="indices: expected ascending numbers"):
        BatchIndices(*bad)


def shuffled(n: int, key: int) -> torch.Tensor:
    return to_tensor(_C.take_shuffled(0, n, n, key))


def orders(n: int, trials: int) -> np.ndarray:
    """[trials, n]: the orders of successive epochs."""
    return np.stack([shuffled(n, _C.shuffle_key(7, epoch)).numpy() for epoch in range(trials)])


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 17, 300, SMALL])
def test_small_orders_equal_the_definition(n: int) -> None:
    """Fisher and Yates: from the last place down, each exchanges with one up to itself."""
    for key in (0, 1, (1 << 64) - 1):
        order = list(range(n))
        for step in range(n - 1, 0, -1):
            other = reference.below(key, n, step, step + 1)
            order[step], order[other] = order[other], order[step]
        assert shuffled(n, key).tolist() == order


@pytest.mark.parametrize("n", [1, 2, 7, SMALL, SMALL + 1, 5000])
def test_batches_are_parts_of_one_order(n: int) -> None:
    for batch_size in (1, 3, 1000):
        schedule = SeedSchedule(n, batch_size, shuffle=True, seed=5)
        indices = range(schedule.num_batches) if batch_size > 1 else range(0, n, max(1, n // 50))
        whole = SeedSchedule(n, n, shuffle=True, seed=5).positions(3, 0)
        assert torch.equal(whole.sort().values, torch.arange(n))
        for index in indices:
            begin = index * batch_size
            assert torch.equal(schedule.positions(3, index), whole[begin : begin + batch_size])


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_each_order_of_few_inputs_is_equally_likely(n: int) -> None:
    trials = 60 * math.factorial(n)
    index = {order: i for i, order in enumerate(itertools.permutations(range(n)))}
    counts = np.bincount([index[tuple(order)] for order in orders(n, trials).tolist()], minlength=len(index))
    assert stats.chisquare(counts).pvalue > ALPHA


@pytest.mark.parametrize(
    "n",
    [
        pytest.param(n, marks=pytest.mark.thorough if 8 < n < 40 and n % 4 else ())
        for n in (*range(5, 41), SMALL + 1, 2048)
    ],
)
def test_pairs_of_places_hold_each_pair_of_inputs_equally_often(n: int) -> None:
    """The first two, the last two, and the ends. Of many inputs, in which of 20 parts they lie."""
    trials = 25_000 if n <= 40 else 10_000
    places = [[0, 1], [n - 2, n - 1], [0, n - 1]]
    found = orders(n, trials)
    for first, second in places:
        one, other = found[:, first], found[:, second]
        if n > 40:
            parts = 20
            sizes = np.bincount(np.arange(n) * parts // n, minlength=parts)
            chance = (np.outer(sizes, sizes) - np.diag(sizes)) / (n * (n - 1))
            counts = np.bincount((one * parts // n) * parts + other * parts // n, minlength=parts**2)
            assert stats.chisquare(counts, trials * chance.reshape(-1)).pvalue > ALPHA
        else:
            counts = np.bincount(one * n + other, minlength=n * n).reshape(n, n)
            assert counts.trace() == 0
            assert stats.chisquare(counts[~np.eye(n, dtype=bool)]).pvalue > ALPHA


def test_places_that_are_none() -> None:
    for begin, end, n in ((-1, 2, 5), (3, 2, 5), (0, 6, 5)):
        with pytest.raises(InvalidArgumentError, match=r"begin, end: expected places in \[0, 5\)"):
            _C.take_shuffled(begin, end, n, 0)
    with pytest.raises(InvalidArgumentError, match="n: expected 0 to"):
        _C.take_shuffled(0, 0, -1, 0)

"""Which batches: shared out and cut without being listed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.sampler.schedule import BatchIndices


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


def test_in_words() -> None:
    assert str(BatchIndices(0, 0)) == "none"
    assert str(BatchIndices(5, 12, 3, (0, 2))) == "0, 2, 5, 8, ..., 11"
    assert str(BatchIndices(5, 9, 3, (0, 2))) == "0, 2, 5, 8"


@pytest.mark.parametrize("bad", [(-1, 3), (3, 9, 0), (3, 9, 1, (2, 2)), (3, 9, 1, (3,)), (3, 9, 1, (-2,))])
def test_what_does_not_ascend_is_refused(bad: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="indices: expected ascending numbers"):
        BatchIndices(*bad)

"""Named grids of workers, against loops over plain lists."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlearn_dist.cluster.data.named_sharding import NamedSharding

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@st.composite
def grids(draw: st.DrawFn) -> tuple[list[int], list[str], dict[tuple[int, ...], int]]:
    """A shape, names, and the worker at each position."""
    shape = draw(shapes)
    names = list("xyz"[: len(shape)])
    positions = list(itertools.product(*map(range, shape)))
    workers = draw(st.permutations(range(5, 5 + len(positions))))
    return shape, names, dict(zip(positions, workers, strict=True))


def build(shape: list[int], names: list[str], at: dict[tuple[int, ...], int]) -> NamedSharding:
    return NamedSharding(np.array(list(at.values())).reshape(shape), names)


@given(grids(), st.data())
def test_every_question_has_the_answer_of_a_loop(grid: tuple, data: st.DataObject) -> None:  # type: ignore[type-arg]
    shape, names, at = grid
    sharding = build(shape, names, at)
    assert sharding.shape == dict(zip(names, shape, strict=True))
    assert (sharding.size, sharding.ndim, sharding.names) == (len(at), len(shape), names)
    for position, worker in at.items():
        assert sharding.get_worker_coords(worker) == dict(zip(names, position, strict=True))
    fixed = {axis: data.draw(st.integers(-1, 4)) for axis in data.draw(st.sets(st.sampled_from(names)))}
    chosen = {
        position: worker
        for position, worker in at.items()
        if all(position[names.index(axis)] == value for axis, value in fixed.items())
    }
    assert sharding.get_ranks_by_coord(**fixed) == sorted(chosen.values())
    if any(not 0 <= value < shape[names.index(axis)] for axis, value in fixed.items()):
        with pytest.raises(IndexError):
            sharding.get_ranks(**fixed)
        return
    part = sharding.get_ranks(**fixed)
    if len(fixed) == len(names):
        assert [part] == list(chosen.values())
        return
    assert isinstance(part, NamedSharding)
    assert part.names == [name for name in names if name not in fixed]
    for position, worker in chosen.items():
        rest = {name: index for name, index in zip(names, position, strict=True) if name not in fixed}
        assert part.get_worker_coords(worker) == rest
    assert part.size == len(chosen)


def test_axes() -> None:
    sharding = NamedSharding([[0, 1, 2], [3, 4, 5]], ["dp", "tp"])
    assert sharding.get_axis_index("tp") == 1
    assert sharding.get_axis_size("tp") == 3
    assert NamedSharding.is_axis_zero({"dp": 0, "tp": 2}, ["dp"])
    assert not NamedSharding.is_axis_zero({"dp": 0, "tp": 2}, ["dp", "tp"])
    assert NamedSharding.is_axis_zero({"dp": 1}, ["other"])


def test_what_is_handed_out_is_a_copy() -> None:
    sharding = NamedSharding([[0, 1]], ["a", "b"])
    sharding.layout[0, 0] = 9
    sharding.names.append("c")
    sharding.get_worker_coords(0)["a"] = 9
    assert sharding == NamedSharding([[0.0, 1.0]], ["a", "b"])
    assert sharding.get_worker_coords(0) == {"a": 0, "b": 0}


def test_equality_and_repr() -> None:
    sharding = NamedSharding([[0, 1], [2, 3]], ["a", "b"])
    assert sharding != NamedSharding([[0, 1], [3, 2]], ["a", "b"])
    assert sharding != NamedSharding([[0, 1], [2, 3]], ["b", "a"])
    assert sharding != [[0, 1], [2, 3]]
    same = pickle.loads(pickle.dumps(sharding))
    assert same == sharding
    assert hash(same) == hash(sharding)
    assert "'a': 2" in repr(sharding)
    assert "[[0, 1], [2, 3]]" in repr(sharding)


@pytest.mark.parametrize(
    ("layout", "names", "said"),
    [
        ([[0, 1], [2]], ["a", "b"], "rows of one length"),
        ([0, 1.5], ["a"], "whole numbers"),
        ([0, float("nan")], ["a"], "whole numbers"),
        (["x"], ["a"], "whole numbers"),
        ([True, False], ["a"], "whole numbers"),
        ([], ["a"], "at least one worker"),
        (3, [], "at least one worker"),
        ([[0, 1]], ["a"], "one for each axis"),
        ([[0, 1]], ["a", "a"], "different"),
        ([0, 0], ["a"], "each worker id once"),
    ],
)
def test_bad_layouts(layout: object, names: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        NamedSharding(layout, names)  # type: ignore[arg-type]


def test_unknown_axes_and_workers() -> None:
    sharding = NamedSharding([0, 1], ["a"])
    for call in (
        lambda: sharding.get_worker_coords(2),
        lambda: sharding.get_ranks_by_coord(b=0),
        lambda: sharding.get_ranks(b=0),
        lambda: sharding.get_axis_index("b"),
        lambda: sharding.get_axis_size("b"),
    ):
        with pytest.raises(ValueError, match="got"):
            call()

"""Who is called with what, against the rule written out for one worker at a time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlearn_dist.cluster.data.named_sharding import NamedSharding
from graphlearn_dist.cluster.groups.call_plan import (
    ShardedAxes,
    bind_arguments,
    eligible_workers,
    plan_different,
    plan_same,
    plan_sharded,
)
from graphlearn_dist.errors import CallArgumentError

SQUARE = NamedSharding([[0, 1], [2, 3]], ["dp", "tp"])


def rows(plan: Any) -> tuple[dict[int, Any], list[int]]:
    return {call.worker: call.kwargs["x"] for call in plan.calls}, plan.return_from


@pytest.mark.parametrize(
    ("axes", "value", "called", "returned"),
    [
        (ShardedAxes(["dp"], ["tp"]), "ab", {0: "a", 1: "a", 2: "b", 3: "b"}, [0, 1, 2, 3]),
        (ShardedAxes(["dp"], ["tp"], ["tp"]), "ab", {0: "a", 1: "a", 2: "b", 3: "b"}, [0, 2]),
        (ShardedAxes(["tp"]), "ab", {0: "a", 1: "b"}, [0, 1]),
        (ShardedAxes(["tp"], call_free=True), "ab", {0: "a", 1: "b", 2: None, 3: None}, [0, 1]),
        (ShardedAxes([], ["tp"]), "ab", {0: "ab", 1: "ab"}, [0, 1]),
        (ShardedAxes(["dp", "tp"]), [["a", "b"], ["c", "d"]], {0: "a", 1: "b", 2: "c", 3: "d"}, [0, 1, 2, 3]),
        (ShardedAxes(["tp", "dp"]), [["a", "b"], ["c", "d"]], {0: "a", 1: "c", 2: "b", 3: "d"}, [0, 1, 2, 3]),
        (ShardedAxes(), "ab", {0: "ab"}, [0]),
        (ShardedAxes(["dp"]), {0: "a", 1: "b"}, {0: "a", 2: "b"}, [0, 2]),
    ],
)
def test_the_documents_table(axes: ShardedAxes, value: Any, called: dict[int, Any], returned: list[int]) -> None:
    assert rows(plan_sharded(SQUARE, 4, axes, {}, {"x": value})) == (called, returned)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
def test_any_layout(shape: list[int], data: st.DataObject) -> None:
    names = list("abc"[: len(shape)])
    positions = list(itertools.product(*map(range, shape)))
    workers = data.draw(st.permutations(range(len(positions))))
    at = dict(zip(workers, positions, strict=True))
    uses = {name: data.draw(st.sampled_from(["sharded", "replicated", "free"])) for name in names}
    sharded = data.draw(st.permutations([name for name in names if uses[name] == "sharded"]))
    output = data.draw(st.sets(st.sampled_from(names)))
    call_free = data.draw(st.booleans())
    # The value of a place is the place itself, on the sharded axes in their order.
    sizes = [shape[names.index(name)] for name in sharded]
    value: Any = np.empty(sizes, dtype=object)
    for place in itertools.product(*map(range, sizes)):
        value[place] = place
    nested = value.tolist() if sizes else ()
    layout = NamedSharding(np.array(workers).reshape(shape), names)
    replicated = [name for name in names if uses[name] == "replicated"]
    axes = ShardedAxes(sharded, replicated, sorted(output), call_free)
    called, returned = rows(plan_sharded(layout, len(workers), axes, {"y": 1}, {"x": nested}))
    for worker in range(len(workers)):
        coords = dict(zip(names, at[worker], strict=True))
        gets_data = all(coords[name] == 0 for name in names if uses[name] == "free")
        assert (worker in called) == (gets_data or call_free)
        if worker in called:
            assert called[worker] == (tuple(coords[name] for name in sharded) if gets_data else None)
        assert (worker in returned) == (gets_data and all(coords[name] == 0 for name in output))
    assert list(called) == sorted(called)
    zero = data.draw(st.sets(st.sampled_from([*names, "other"])))
    expected = [w for w in range(len(workers)) if all(at[w][names.index(n)] == 0 for n in zero & set(names))]
    assert eligible_workers(layout, len(workers), sorted(zero)) == expected


@pytest.mark.parametrize(
    ("axes", "value", "said"),
    [
        (ShardedAxes(["no"]), "ab", r"in_sharded_axes: expected axes of \['dp', 'tp'\], got \['no'\]"),
        (ShardedAxes([], ["no"]), "ab", r"replicate_on_axes: expected axes of \['dp', 'tp'\], got \['no'\]"),
        (ShardedAxes(["dp"], ["tp"], ["no"]), "ab", r"output_is_replicated: expected axes of .*, got \['no'\]"),
        (ShardedAxes(["dp"], ["dp"]), "ab", "none of in_sharded_axes"),
        (ShardedAxes(["dp"]), "a", "x: expected 2 items, one for each coordinate on axis 'dp', got 1 items; .*common_"),
        (ShardedAxes(["dp"]), [1, 2, 3], "x: expected 2 items, .* axis 'dp', got 3 items; .* into common_kwargs"),
        (ShardedAxes(["dp"]), 7, "x: expected 2 items, .* axis 'dp', got int 7; .* into common_kwargs"),
        (ShardedAxes(["dp"]), np.array(7), "x: expected 2 items, .* axis 'dp', got ndarray array"),
        (ShardedAxes(["dp"]), iter("ab"), "x: expected 2 items, .* axis 'dp', got str_"),
        (ShardedAxes(["dp"]), {1, 2}, "x: expected a list, .* axis 'dp', got a set"),
        (ShardedAxes(["dp"]), {"a": 1, "b": 2}, "x: expected a list, .* axis 'dp', got a dict"),
        (ShardedAxes(["dp", "tp"]), [[1, 2], [3, 4, 5]], "x: expected 2 items, .* axis 'tp', got 3 items"),
        (ShardedAxes(["dp", "tp"]), [[1, 2], 3], "x: expected 2 items, .* axis 'tp', got int 3"),
    ],
)
def test_wrong_axes_and_data_that_does_not_fit_them(axes: ShardedAxes, value: Any, said: str) -> None:
    with pytest.raises(CallArgumentError, match=said):
        plan_sharded(SQUARE, 4, axes, {}, {"x": value})


def test_same_and_different_data() -> None:
    assert [(c.worker, c.kwargs) for c in plan_same([1, 3], {"x": 1})] == [(1, {"x": 1}), (3, {"x": 1})]
    calls = plan_different([1, 3], {"y": 0}, {"x": "ab"})
    assert [(c.worker, c.kwargs) for c in calls] == [(1, {"y": 0, "x": "a"}), (3, {"y": 0, "x": "b"})]
    for kwargs in (
        {},
        {"x": "a"},
        {"x": "abc"},
        {"x": "ab", "z": "a"},
        {"x": 5},
        {"x": {5, 6}},
        {"x": "ab", "z": None},
    ):
        with pytest.raises(CallArgumentError, match=r"kwargs|one for each worker called"):
            plan_different([1, 3], {}, kwargs)
    with pytest.raises(CallArgumentError, match=r"z: expected 2 items, .*, got int 5; what is equal .* common_kwargs"):
        plan_different([1, 3], {}, {"x": "ab", "z": 5})


def test_arguments_by_position_become_arguments_by_name() -> None:
    assert bind_arguments("m", ("a", "b"), (1,), {"b": 2, "c": 3}) == {"a": 1, "b": 2, "c": 3}
    with pytest.raises(CallArgumentError, match="at most 1"):
        bind_arguments("m", ("a",), (1, 2), {})
    with pytest.raises(CallArgumentError, match="once"):
        bind_arguments("m", ("a",), (1,), {"a": 2})

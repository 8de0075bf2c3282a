"""Which worker is called with which data: plain values, nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import CallArgumentError
from ..data.named_sharding import NamedSharding


@dataclass(frozen=True)
class WorkerCall:
    """A call of one worker."""

    worker: int
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class CallPlan:
    """Calls by ascending rank, and the workers whose results are wanted."""

    calls: list[WorkerCall]
    return_from: list[int]


def eligible_workers(layout: NamedSharding, world_size: int, zero_axes: Sequence[str] | None) -> list[int]:
    """Workers at 0 on all these axes; axes that the layout does not have do not count."""
    axes = zero_axes or []
    return [rank for rank in range(world_size) if layout.is_axis_zero(layout.get_worker_coords(rank), axes)]


def plan_same(workers: Sequence[int], kwargs: Mapping[str, Any]) -> list[WorkerCall]:
    """The same data for all of them."""
    return [WorkerCall(worker, dict(kwargs)) for worker in workers]


def plan_different(
    workers: Sequence[int], common_kwargs: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> list[WorkerCall]:
    """Item k of every value for the k-th of them.

    Raises:
        CallArgumentError: there is no value, or one has not as many items as there are workers.
    """
    if not kwargs:
        raise CallArgumentError("kwargs: expected at least one list; use run_all_workers_single_data without data")
    count, each = len(workers), "one for each worker called"
    return [
        WorkerCall(
            worker, {**common_kwargs, **{name: _item(name, values, k, count, each) for name, values in kwargs.items()}}
        )
        for k, worker in enumerate(workers)
    ]


def _item(name: str, values: Any, index: int, count: int, each: str) -> Any:
    """Item ``index`` of an argument that has ``count`` of them.

    Raises:
        CallArgumentError: it has not that many, or no items at all.
    """
    try:
        length = len(values)
    except TypeError:  # a number, a tensor without dimensions, a generator
        length = None
    if length != count:
        got = f"{type(values).__name__} {values!r}"[:100] if length is None else f"{length} items"
        raise CallArgumentError(
            f"{name}: expected {count} items, {each}, got {got}; what is equal on all goes into common_kwargs"
        )
    try:
        return values[index]
    except (TypeError, KeyError) as error:
        raise CallArgumentError(
            f"{name}: expected a list, a tensor or an array of {count} items, {each}, got a {type(values).__name__}"
        ) from error


@dataclass(frozen=True)
class ShardedAxes:
    """How the axes of a layout are used; an axis that is neither sharded nor replicated is free.

    Attributes:
        sharded: data is indexed by the coordinate on each of these, in this order.
        replicated: all coordinates get the same data.
        output_replicated: only coordinate 0 returns a result.
        call_free: workers beyond 0 on a free axis are called too, with None for their data.
    """

    sharded: Sequence[str] = ()
    replicated: Sequence[str] = ()
    output_replicated: Sequence[str] = ()
    call_free: bool = False

    def check(self, layout: NamedSharding) -> None:
        """Raises ``CallArgumentError`` where an axis does not exist, or is both sharded and replicated."""
        given = {
            "in_sharded_axes": self.sharded,
            "replicate_on_axes": self.replicated,
            "output_is_replicated": self.output_replicated,
        }
        for argument, axes in given.items():
            if unknown := [axis for axis in axes if axis not in layout.names]:
                raise CallArgumentError(f"{argument}: expected axes of {layout.names}, got {unknown}")
        if both := sorted(set(self.sharded) & set(self.replicated)):
            raise CallArgumentError(f"replicate_on_axes: expected none of in_sharded_axes, got {both}")


def plan_sharded(
    layout: NamedSharding,
    world_size: int,
    axes: ShardedAxes,
    common_kwargs: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> CallPlan:
    """Data cut along the sharded axes.

    Raises:
        CallArgumentError: the axes are wrong, or a value has not one item for each coordinate on a sharded axis.
    """
    axes.check(layout)
    used = {*axes.sharded, *axes.replicated}
    free = [name for name in layout.names if name not in used]
    plan = CallPlan([], [])
    for rank in range(world_size):
        coords = layout.get_worker_coords(rank)
        if layout.is_axis_zero(coords, free):
            own = {name: _cut(name, value, coords, axes.sharded, layout) for name, value in kwargs.items()}
            if layout.is_axis_zero(coords, axes.output_replicated):
                plan.return_from.append(rank)
        elif axes.call_free:
            own = dict.fromkeys(kwargs)
        else:
            continue
        plan.calls.append(WorkerCall(rank, {**common_kwargs, **own}))
    return plan


def _cut(name: str, value: Any, coords: Mapping[str, int], axes: Sequence[str], layout: NamedSharding) -> Any:
    for axis in axes:
        value = _item(
            name, value, coords[axis], layout.get_axis_size(axis), f"one for each coordinate on axis {axis!r}"
        )
    return value


def bind_arguments(
    method: str, parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments by position as arguments by name.

    Raises:
        CallArgumentError: there are more than the method takes by position, or one is given twice.
    """
    if len(args) > len(parameters):
        raise CallArgumentError(f"{method}: expected at most {len(parameters)} arguments by position, got {len(args)}")
    named = dict(zip(parameters, args, strict=False))
    if twice := sorted(named.keys() & kwargs.keys()):
        raise CallArgumentError(f"{method}: expected each argument once, got {twice} by position and by name")
    return {**named, **kwargs}

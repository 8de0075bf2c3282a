"""Which worker is called with which data: plain values, nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CallArgumentError, InvalidArgumentError, UnknownIdError
from .named_sharding import NamedSharding


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
    lengths = {name: len(values) for name, values in kwargs.items()}
    if set(lengths.values()) != {len(workers)}:
        raise CallArgumentError(f"kwargs: expected {len(workers)} items, one for each worker called, got {lengths}")
    return [
        WorkerCall(worker, {**common_kwargs, **{name: values[k] for name, values in kwargs.items()}})
        for k, worker in enumerate(workers)
    ]


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
        """Raises ``InvalidArgumentError`` where an axis does not exist, or is both sharded and replicated."""
        layout.check_axes("in_sharded_axes", self.sharded)
        layout.check_axes("replicate_on_axes", self.replicated)
        both = sorted(set(self.sharded) & set(self.replicated))
        if both:
            raise InvalidArgumentError(f"replicate_on_axes: expected none of in_sharded_axes, got {both}")


def plan_sharded(
    layout: NamedSharding,
    world_size: int,
    axes: ShardedAxes,
    common_kwargs: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> CallPlan:
    """Data cut along the sharded axes.

    Raises:
        InvalidArgumentError: the axes are wrong.
        UnknownIdError: a value has too few items on a sharded axis (an ``IndexError``).
    """
    axes.check(layout)
    used = {*axes.sharded, *axes.replicated}
    free = [name for name in layout.names if name not in used]
    plan = CallPlan([], [])
    for rank in range(world_size):
        coords = layout.get_worker_coords(rank)
        if layout.is_axis_zero(coords, free):
            own = {name: _cut(name, value, coords, axes.sharded) for name, value in kwargs.items()}
            if layout.is_axis_zero(coords, axes.output_replicated):
                plan.return_from.append(rank)
        elif axes.call_free:
            own = dict.fromkeys(kwargs)
        else:
            continue
        plan.calls.append(WorkerCall(rank, {**common_kwargs, **own}))
    return plan


def _cut(name: str, value: Any, coords: Mapping[str, int], axes: Sequence[str]) -> Any:
    for axis in axes:
        try:
            value = value[coords[axis]]
        except IndexError as error:
            raise UnknownIdError(
                f"{name}: expected an item for {axis}={coords[axis]}, got {len(value)} items"
            ) from error
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

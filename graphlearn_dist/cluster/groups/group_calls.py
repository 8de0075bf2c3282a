"""Calls of several workers, and waiting for all of them."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import DeadlineExceededError, WorkerFailureError
from ..actors.base import ActorBackend, Ref
from .call_plan import WorkerCall
from .group_settings import GroupSettings
from .worker_slot import WorkerSlot

_DEATH_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Calls:
    """Calls that were sent.

    Attributes:
        method: of all of them.
        slots: the worker of each.
        kwargs: the data of each.
        refs: the reference or stream of each.
        incarnations: of each worker when it was called.
    """

    method: str
    slots: list[WorkerSlot]
    kwargs: list[dict[str, Any]]
    refs: list[Ref]
    incarnations: list[int]

    @classmethod
    def start(cls, method: str, slots: Sequence[WorkerSlot], calls: Sequence[WorkerCall]) -> Calls:
        """Sends them all."""
        own = [slots[call.worker] for call in calls]
        kwargs = [dict(call.kwargs) for call in calls]
        incarnations = [slot.incarnation for slot in own]
        refs = [slot.call(method, data) for slot, data in zip(own, kwargs, strict=True)]
        return cls(method, own, kwargs, refs, incarnations)


def collect(calls: Calls, backend: ActorBackend, settings: GroupSettings) -> list[Any]:
    """Waits for all of them; results in order, lists of items for generators.

    Where a worker dies, restarts are on and the method is idempotent, it is called again on the next process.

    Raises:
        WorkerFailureError: some failed; the results of the others are in it.
    """
    timeout_s = settings.call_timeout_s
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    results: dict[int, Any] = {}
    errors: dict[int, BaseException] = {}
    for index, slot in enumerate(calls.slots):
        try:
            results[slot.rank] = _result(calls, index, backend, settings, deadline)
        except Exception as error:  # whatever the worker's code raises
            errors[slot.rank] = error
            if backend.is_lost(error):
                slot.wait_death(calls.incarnations[index], _DEATH_TIMEOUT_S)
    if errors:
        where = {slot.rank: slot.where for slot in calls.slots if slot.rank in errors}
        restartable = settings.restart_on_failure and all(backend.is_lost(error) for error in errors.values())
        raise WorkerFailureError(calls.method, errors, results, restartable, where)
    return [results[slot.rank] for slot in calls.slots]


def _result(calls: Calls, index: int, backend: ActorBackend, settings: GroupSettings, deadline: float | None) -> Any:
    """The result of one call, by as many calls as it takes."""
    slot, ref, incarnation = calls.slots[index], calls.refs[index], calls.incarnations[index]
    may_repeat = settings.restart_on_failure and slot.profile(calls.method).idempotent
    while True:
        try:
            return _fetch(backend, ref, _left(deadline))
        except Exception as error:  # as above
            if not (may_repeat and backend.is_lost(error)):
                raise
            if not slot.wait_restarted(incarnation, settings.start_timeout_s):
                raise
        incarnation = slot.incarnation
        ref = slot.call(calls.method, calls.kwargs[index])


def _fetch(backend: ActorBackend, ref: Ref, timeout_s: float | None) -> Any:
    if backend.is_stream(ref):
        return [backend.get([item], timeout_s)[0] for item in ref]
    future: concurrent.futures.Future[Any] = ref.future()
    if not concurrent.futures.wait([future], timeout_s).done:
        raise DeadlineExceededError(f"expected a result within {timeout_s:g} s")
    return future.result()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())

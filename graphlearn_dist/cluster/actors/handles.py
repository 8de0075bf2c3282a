"""Workers as their callers hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import InvalidArgumentError
from .base import Actor, ActorProfile, MethodProfile, Ref


class WorkerHandle:
    """A worker, as a caller holds it: ``handle.method.remote(…)`` gives a reference; stays good over restarts.

    What it is sent to gets Ray's own handle of the worker's process of then, which has the same methods.
    """

    def __init__(self, actor: Callable[[], Actor]) -> None:
        self._actor = actor

    @property
    def actor(self) -> Actor:
        """The process of now."""
        return self._actor()

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("__"):
            raise AttributeError(name)
        return RemoteMethod(self._actor(), name)

    def __repr__(self) -> str:
        return f"WorkerHandle({self._actor().spec.name or 'worker'})"

    def __reduce__(self) -> Any:
        raise InvalidArgumentError(
            f"{self!r}: expected the handle of a worker on Ray to be sent to another process; a local worker answers "
            "only the process that started it"
        )


class RemoteMethod:
    """A method of a worker; waits until that is constructed.

    Raises:
        AttributeError: it has none of that name.
        WorkerLateError: the worker was not constructed in time, and was killed.
    """

    def __init__(self, actor: Actor, name: str) -> None:
        self._actor = actor
        self._name = name
        self.profile = find_method(actor.spec.name, actor.ready.result(), name)

    def remote(self, *args: Any, **kwargs: Any) -> Ref:
        """Calls it without waiting; a generator gives a stream of references."""
        if self.profile.streams:
            return self._actor.stream(self._name, *args, **kwargs)
        return self._actor.call(self._name, *args, **kwargs)


def find_method(worker: str, profile: ActorProfile, name: str) -> MethodProfile:
    """What is known of a method; raises ``AttributeError``, which lists those that there are."""
    if name not in profile.methods:
        raise AttributeError(f"{worker or 'worker'} has no method {name!r}; it has {sorted(profile.methods)}")
    return profile.methods[name]

"""Coroutines that wait for nobody."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_local(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end, without an event loop.

    What asks other processes when it has to is written once, as a coroutine; where everything is in this process it
    never waits.

    Raises:
        RuntimeError: it did wait.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine} waits for another process; run it in an event loop")

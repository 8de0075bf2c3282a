"""Classes of which a process has one object."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def singleton(cls: type[T]) -> Callable[..., T]:
    """Decorates a class: every call gives the object that the first call made. Thread-safe."""
    made: list[T] = []
    lock = threading.Lock()

    @functools.wraps(cls, updated=())
    def only(*args: Any, **kwargs: Any) -> T:
        with lock:
            if not made:
                made.append(cls(*args, **kwargs))
            return made[0]

    return only

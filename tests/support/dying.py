"""Kills the process at a chosen one of the places where it writes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any


class Death:
    """Counts calls of functions, before and after each, and kills this process at the ``at``-th count.

    Args:
        places: owners of functions (classes, modules), and the names of these.
        at: None: the process lives.
    """

    def __init__(self, places: Sequence[tuple[Any, Sequence[str]]], at: int | None) -> None:
        self.count, self._at = 0, at
        for owner, names in places:
            for name in names:
                setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._step()
            result = function(*args, **kwargs)
            self._step()
            return result

        return call

    def _step(self) -> None:
        self.count += 1
        if self.count == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

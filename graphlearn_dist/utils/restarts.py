"""How often something that dies is started again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

RESTART_WINDOW_S = 3600.0


class RestartBudget:
    """At most ``limit`` restarts within any hour: what dies now and then lives on, what dies always is given up.

    Args:
        limit: restarts within the window.
        window_s: its length in seconds.
        clock: seconds that only grow.
    """

    def __init__(
        self, limit: int, window_s: float = RESTART_WINDOW_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self._window_s = window_s
        self._clock = clock
        self._taken: deque[float] = deque()

    def take(self) -> bool:
        """Whether one more restart is allowed; it counts."""
        now = self._clock()
        while self._taken and now - self._taken[0] >= self._window_s:
            self._taken.popleft()
        if len(self._taken) >= self.limit:
            return False
        self._taken.append(now)
        return True

    @property
    def used(self) -> int:
        """Restarts within the window, as of the last ``take``."""
        return len(self._taken)

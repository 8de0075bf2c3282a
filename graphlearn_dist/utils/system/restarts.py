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

    Attributes:
        num_taken: restarts until now, in all.
    """

    def __init__(
        self, limit: int, window_s: float = RESTART_WINDOW_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self._window_s = window_s
        self._clock = clock
        self._taken: deque[float] = deque()
        self.num_taken = 0

    def take(self) -> bool:
        """Whether one more restart is allowed; it counts."""
        if not self.is_left:
            return False
        self._taken.append(self._clock())
        self.num_taken += 1
        return True

    @property
    def is_left(self) -> bool:
        """Whether one more restart is allowed; asking does not count."""
        return self.used < self.limit

    @property
    def used(self) -> int:
        """Restarts within the window that ends now."""
        now = self._clock()
        while self._taken and now - self._taken[0] >= self._window_s:
            self._taken.popleft()
        return len(self._taken)

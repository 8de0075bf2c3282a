"""Connections that were turned away: counted, and told in the log, which strangers cannot fill."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_PERIOD_S = 10.0
_PER_PERIOD = 10

_logger = logging.getLogger(__name__)


class Refusals:
    """What one endpoint refused. At most ten lines are logged in ten seconds; how many more there were comes later.

    Args:
        own_name: the endpoint's name.
        clock: seconds.
    """

    def __init__(self, own_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._own_name = own_name
        self._clock = clock
        self._period_end = 0.0
        self._logged = 0
        self._left_out = 0

    def record(self, origin: str, why: str) -> None:
        """A connection was refused.

        Args:
            origin: where it came from.
            why: the reason; may hold what a stranger sent.
        """
        self.count += 1
        now = self._clock()
        if now >= self._period_end:
            self.tell_left_out()
            self._period_end, self._logged = now + _PERIOD_S, 0
        if self._logged >= _PER_PERIOD:
            self._left_out += 1
            return
        self._logged += 1
        text = "".join(letter if letter.isprintable() else "?" for letter in why)  # a stranger writes no lines here
        _logger.warning("%s refused a connection from %s: %s", self._own_name, origin, text)

    def tell_left_out(self) -> None:
        """Log how many refusals were left out, if any."""
        if self._left_out:
            _logger.warning("%s refused %d more connections", self._own_name, self._left_out)
            self._left_out = 0

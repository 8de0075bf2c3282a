"""Waiting for what nobody announces."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 60.0  # only ever reached by a hang


def wait_until(condition: Callable[[], object]) -> None:
    """Returns when the condition holds.

    Raises:
        AssertionError: it does not within a minute.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)

"""Waiting for what nobody announces."""

from __future__ import annotations

import gc
import threading
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


def collect() -> None:
    """``gc.collect``, which returns at once, having done nothing, while another thread is in a collection."""
    me, done = threading.get_ident(), threading.Event()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2 and threading.get_ident() == me:
            done.set()

    def collected() -> bool:
        gc.collect()
        return done.is_set()

    gc.callbacks.append(note)
    try:
        wait_until(collected)
    finally:
        gc.callbacks.remove(note)

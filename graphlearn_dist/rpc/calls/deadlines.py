"""When calls and their answers have taken too long."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Protocol

from ..engine.threads import post


class Expiring(Protocol):
    """What has a deadline."""

    @property
    def deadline(self) -> float:
        """The loop's time, which is ``time.monotonic()``, at which it expires."""

    def expire(self) -> None:
        """The deadline has passed. On the loop's thread; it may have ended meanwhile."""


class Deadlines:
    """Things that must be over by a certain time: one timer of the loop for all of them.

    Most have the same limit, so that a new one is due after all others and the timer stays as it is.

    Args:
        loop: the loop that lets them expire.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._entries: dict[Expiring, None] = {}
        self._lock = threading.Lock()
        self._next = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, entry: Expiring) -> None:
        """Let ``entry`` expire at its deadline. From any thread."""
        with self._lock:
            self._entries[entry] = None
            is_first = entry.deadline < self._next
            if is_first:
                self._next = entry.deadline
        if is_first:
            post(self._loop, self._set_timer)

    def discard(self, entry: Expiring) -> None:
        """It has no deadline any more. From any thread."""
        self._entries.pop(entry, None)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._next < math.inf:
            self._timer = self._loop.call_at(self._next, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        with self._lock:
            entries = sorted(self._entries.copy(), key=lambda entry: entry.deadline)  # others are taken out meanwhile
            self._next = next((entry.deadline for entry in entries if entry.deadline > now), math.inf)
        self._set_timer()
        for entry in entries:
            if entry.deadline > now:
                return
            entry.expire()

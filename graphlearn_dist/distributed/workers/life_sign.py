"""Signs of life of a process that has no thread to spare for them, in memory that it shares with who watches it."""

from __future__ import annotations

import mmap
import select
import socket
import time

from ... import _C
from ...config import PULSE_INTERVAL_S, heartbeat_timeout_s

_LOOK_S = 0.25
_LATE_S = 0.5  # a look that comes so late means that this process was stopped itself
_GRACE_S = PULSE_INTERVAL_S  # for whom it was stopped with, to give a sign again
_OLD_S = 1.5 * PULSE_INTERVAL_S


class LifeSign:
    """When a process has last given a sign of life.

    Args:
        descriptor: of the shared memory, see ``make``; it may be closed afterwards.
    """

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, mmap.PAGESIZE)
        # One machine word, the clock of this host in nanoseconds: no reader ever sees half of it.
        self._time_ns = memoryview(self._map).cast("q")

    @staticmethod
    def make() -> int:
        """A descriptor of memory for one; whoever asks closes it."""
        return _C.create_memory_file("life-sign", mmap.PAGESIZE)

    def give(self) -> None:
        """This process lives. To be called every ``PULSE_INTERVAL_S``."""
        self._time_ns[0] = time.monotonic_ns()

    @property
    def age_s(self) -> float:
        """Seconds since the last sign."""
        return (time.monotonic_ns() - self._time_ns[0]) / 1e9

    @property
    def is_old(self) -> bool:
        """Whether there should have been another one since; the process may only be slow."""
        return self.age_s > _OLD_S

    def wait_for(self, sock: socket.socket, events: int, timeout_s: float) -> str:
        """Waits for events of ``select.poll`` on a socket as long as the process lives.

        It is given up after ``GLD_HEARTBEAT_TIMEOUT`` (3 s) without a sign, however long what was asked of it takes.

        Returns:
            Why they did not come, in words; nothing where they did.
        """
        limit_s = max(heartbeat_timeout_s(), 2 * PULSE_INTERVAL_S)
        poll = select.poll()
        poll.register(sock, events)
        began = watching = looked = time.monotonic()
        while not poll.poll(_LOOK_S * 1000):
            now = time.monotonic()
            if now - looked > _LOOK_S + _LATE_S:
                watching = now
            looked = now
            silent_s = self.age_s
            if silent_s > limit_s and now - watching > _GRACE_S:
                return f"gave no sign of life for {silent_s:.1f} s"
            if now - began > timeout_s:
                return f"did not answer within {timeout_s:g} s"
        return ""

    def close(self) -> None:
        """Lets go of the memory."""
        self._time_ns.release()
        self._map.close()

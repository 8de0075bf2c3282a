"""Which clients of a server are done, and waiting until all are."""

from __future__ import annotations

import threading
import time

_RETURN_S = 10.0  # a client that is lost for so long does not come again


class ClientRoll:
    """The clients that a server need not wait for. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._done: set[int] = set()
        self._lost: dict[int, float] = {}  # and when, by time.monotonic()
        self._ended = False

    def end(self) -> None:
        """Nobody is waited for any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def done(self, rank: int) -> None:
        """A client says that it is done."""
        with self._changed:
            self._done.add(rank)
            self._changed.notify_all()

    def lost(self, rank: int) -> None:
        """A client is gone; it may only have lost its connection, and come again."""
        with self._changed:
            self._lost[rank] = time.monotonic()
            self._changed.notify_all()

    def joined(self, rank: int) -> None:
        """A client is there."""
        with self._changed:
            self._lost.pop(rank, None)
            self._done.discard(rank)

    def wait(self, expected: int, interval_s: float) -> None:
        """Returns when ``expected`` clients (0: never) are done or lost for good, or after ``end``.

        Args:
            expected: clients in the job.
            interval_s: wakes so often, that a signal is handled promptly.
        """
        with self._changed:
            while not self._ended:
                now = time.monotonic()
                gone = self._done | {rank for rank, since in self._lost.items() if now - since >= _RETURN_S}
                if expected and len(gone) >= expected:
                    return
                left = [_RETURN_S - (now - since) for since in self._lost.values() if now - since < _RETURN_S]
                self._changed.wait(min([interval_s, *left]))

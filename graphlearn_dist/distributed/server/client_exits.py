"""Which clients of a server are done, and waiting until all are."""

from __future__ import annotations

import math
import threading
import time

from ...errors import AuthenticationError
from ...rpc.peers.identity import Peer

_RETURN_S = 60.0  # a client that is lost for so long does not come again: its loaders wait no longer for a server


class ClientExits:
    """The clients that a server need not wait for. Thread-safe.

    Args:
        expected: clients in the job, which have the ranks below it: others, and those whose role says that they are of
            another job, are visitors, and not waited for. 0 leaves their number open. Nothing is kept of those.
        is_supervised: a launcher knows which clients have ended, so that one that is lost may always come back.
    """

    def __init__(self, expected: int, *, is_supervised: bool = False) -> None:
        self._expected = expected
        self._return_s = math.inf if is_supervised else _RETURN_S
        self._changed = threading.Condition()
        self._done: dict[int, Peer] = {}  # by rank: who was it last
        self._lost: dict[int, float] = {}  # and when, by time.monotonic()
        self._ended = False
        self._refused = ""

    def end(self) -> None:
        """Nobody is waited for any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def refuse(self, why: str) -> None:
        """The job is gone, and another one is in its place: ``wait`` says so."""
        self._refused = why
        self.end()

    def _counts(self, peer: Peer) -> bool:
        return peer.role == "client" and peer.rank < self._expected

    def done(self, peer: Peer) -> None:
        """Somebody says that it is done, or has left, which means the same where its word did not reach us."""
        if not self._counts(peer):
            return
        with self._changed:
            self._done[peer.rank] = peer
            self._changed.notify_all()

    def lost(self, peer: Peer) -> None:
        """Somebody is gone; it may only have lost its connection, and come again."""
        if not self._counts(peer):
            return
        with self._changed:
            self._lost[peer.rank] = time.monotonic()
            self._changed.notify_all()

    def joined(self, peer: Peer) -> None:
        """Somebody is there; a client that was done has work again where it is another process, or began anew."""
        if not self._counts(peer):
            return
        with self._changed:
            self._lost.pop(peer.rank, None)
            if self._done.get(peer.rank) != peer:
                self._done.pop(peer.rank, None)

    def is_over(self) -> bool:
        """Whether as many clients as are expected (0: never) are done or lost for good, or ``end`` was called."""
        with self._changed:
            longest_ago = time.monotonic() - self._return_s
            gone = {*self._done, *(rank for rank, since in self._lost.items() if since <= longest_ago)}
            return self._ended or 0 < self._expected <= len(gone)

    def wait(self, interval_s: float) -> None:
        """Returns when it ``is_over``.

        Args:
            interval_s: wakes so often, that a signal is handled promptly.

        Raises:
            AuthenticationError: the job is gone, see ``refuse``.
        """
        with self._changed:
            while not self.is_over():
                now = time.monotonic()
                ends = [since + self._return_s for since in self._lost.values()]
                left = [end - now for end in ends if end > now]
                self._changed.wait(min([interval_s, *left]))
        if self._refused:
            raise AuthenticationError(self._refused)

"""Which clients of a server are done, and waiting until all are."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter

from ...errors import AuthenticationError
from ...rpc.peers.identity import Peer

_RETURN_S = 60.0  # a client that is lost for so long does not come again: its loaders wait no longer for a server


class ClientExits:
    """The clients that a server need not wait for. Thread-safe.

    Args:
        expected: clients in the job, which have the ranks below it: others, and those whose role says that they are of
            another job, are visitors, and not waited for. 0 leaves their number open: it is over then when a group of
            clients has said how many it is, and all of it and whoever else is there are done.
        is_supervised: a launcher knows which clients have ended, so that one that is lost may always come back.
    """

    def __init__(self, expected: int, *, is_supervised: bool = False) -> None:
        self._expected = expected
        self._return_s = math.inf if is_supervised else _RETURN_S
        self._changed = threading.Condition()
        # By role, whose ranks count: how many clients are waited for.
        self._sizes = {"client": expected} if expected > 0 else {}
        self._there: set[tuple[str, int]] = set()  # of an open number: who has come, by role and rank
        self._done: dict[tuple[str, int], Peer] = {}  # who was it last
        self._lost: dict[tuple[str, int], float] = {}  # and when, by time.monotonic()
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
        if self._expected == 0:
            return peer.role.partition(":")[0] == "client"
        return peer.role == "client" and peer.rank < self._expected

    def done(self, peer: Peer, group_size: int = 0) -> None:
        """Somebody says that it is done, or has left, which means the same where its word did not reach us.

        Args:
            peer: who.
            group_size: how many clients have its role; 0 where the server shall not end for them.
        """
        if not self._counts(peer):
            return
        with self._changed:
            if self._expected == 0 and group_size > 0:
                self._sizes[peer.role] = group_size
            self._done[peer.role, peer.rank] = peer
            self._forget_visitors(peer.role)
            self._changed.notify_all()

    def lost(self, peer: Peer) -> None:
        """Somebody is gone; it may only have lost its connection, and come again."""
        if not self._counts(peer):
            return
        with self._changed:
            self._lost[peer.role, peer.rank] = time.monotonic()
            self._forget_visitors(peer.role)
            self._changed.notify_all()

    def joined(self, peer: Peer) -> None:
        """Somebody is there; a client that was done has work again where it is another process, or began anew."""
        if not self._counts(peer):
            return
        with self._changed:
            key = peer.role, peer.rank
            self._lost.pop(key, None)
            if self._done.get(key) != peer:
                self._done.pop(key, None)
                if self._expected == 0:
                    self._there.add(key)
            self._forget_visitors(peer.role)

    def _forget_visitors(self, role: str) -> None:
        """Keeps nothing of a group for which the server does not end, and of which nobody is there any more."""
        if self._expected > 0 or role in self._sizes or any(of == role for of, _ in self._there - self._gone()):
            return
        self._there = {key for key in self._there if key[0] != role}
        self._done = {key: peer for key, peer in self._done.items() if key[0] != role}
        self._lost = {key: since for key, since in self._lost.items() if key[0] != role}

    def _gone(self) -> set[tuple[str, int]]:
        """Who is done, or lost for good."""
        longest_ago = time.monotonic() - self._return_s
        return {*self._done, *(key for key, since in self._lost.items() if since <= longest_ago)}

    def is_over(self) -> bool:
        """Whether all who are waited for are done or lost for good (see the class), or ``end`` was called."""
        with self._changed:
            gone = self._gone()
            of_role = Counter(role for role, _ in gone)
            is_complete = bool(self._sizes) and all(of_role[role] >= size for role, size in self._sizes.items())
            return self._ended or (is_complete and not self._there - gone)

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

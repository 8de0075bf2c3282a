"""What a client tells servers when it is done with something, and how long it waits for them to have heard it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from ...errors import PeerLostError
from ...rpc import Endpoint
from ...rpc.calls.remote import Remote

_PATIENCE_S = 2.5  # for all calls of one closing: it ends within 5 s, also where servers have frozen
_CLOSING_S = 10.0  # calls that are further apart have nothing to do with each other
_SENT_S = 60.0  # for one that nobody waits for any more, and that reaches a server that goes on


class ClosingCalls:
    """Tells servers that something of theirs is not needed any more. Thread-safe.

    A server that answers is waited for, so that what it held for us is gone then. What is spent on those that do not is
    shared by all calls of one closing: closing ten loaders takes no longer than closing one.

    Args:
        endpoint: of this client.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._in_vain_s = 0.0
        self._in_vain_at = 0.0

    @property
    def patience_s(self) -> float:
        """Seconds that are left to wait for servers that do not answer."""
        with self._lock:
            if time.monotonic() - self._in_vain_at > _CLOSING_S:
                self._in_vain_s = 0.0
            return max(0.0, _PATIENCE_S - self._in_vain_s)

    def send(self, function: Callable[..., Any], arguments: Mapping[int, tuple[Any, ...]]) -> None:
        """Calls a declared function of several servers at once, given its arguments by rank; nothing is raised.

        A server that is gone holds nothing any more, and of one that does not answer nobody can tell. One whose
        connection was lost may be there again soon: it is told then, with nobody waiting for that.
        """
        if not self._endpoint.is_open():
            return
        began = time.monotonic()
        asked = {self._send(rank, function, args, fail_fast=True): rank for rank, args in arguments.items()}
        done, in_vain = wait(asked, self.patience_s)
        for future in done:
            if isinstance(future.exception(), PeerLostError) and self._endpoint.is_open():
                rank = asked[future]
                self._send(rank, function, arguments[rank], fail_fast=False)
        if in_vain or any(future.exception() is not None for future in done):
            with self._lock:
                self._in_vain_at = time.monotonic()
                self._in_vain_s += self._in_vain_at - began

    def _send(self, rank: int, function: Callable[..., Any], args: tuple[Any, ...], *, fail_fast: bool) -> Future[Any]:
        return Remote[Any](self._endpoint, ("server", rank), timeout_s=_SENT_S, fail_fast=fail_fast).ask(
            function, *args
        )

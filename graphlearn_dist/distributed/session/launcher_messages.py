"""What the launcher says to the processes of a job while they run: which server it has given up."""

from __future__ import annotations

import json
import os
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from ...errors import PeerLostError
from ...rpc import Endpoint

_READ_BYTES = 4096


def result_or_alarm(future: Future[Any], alarm: Future[None] | None, timeout_s: float | None = None) -> Any:
    """The result of ``future``, waited for until the alarm goes off.

    Raises:
        TimeoutError: neither came in time.
        PeerLostError: the alarm did.
    """
    if alarm is not None:
        if not future.done():
            wait((future, alarm), timeout_s, FIRST_COMPLETED)
        try:
            raise_alarm(alarm)
        except Exception:
            future.cancel()
            raise
        timeout_s = 0
    return future.result(timeout_s)


def raise_alarm(alarm: Future[None] | None) -> None:
    """Raises what the alarm says, if it went off: a new error each time, with a traceback of its own."""
    if alarm is not None and alarm.done() and (error := alarm.exception()) is not None:
        raise type(error)(*error.args)


class LauncherMessages:
    """Follows the launcher's pipe on an asyncio loop.

    Args:
        descriptor: the pipe; stays open, as this process may become another client later. -1 for none.
        endpoint: on whose loop to follow it, and which knows the others by name.
    """

    def __init__(self, descriptor: int, endpoint: Endpoint) -> None:
        self.alarm: Future[None] = Future()  # fails when the job cannot go on
        self._descriptor = os.dup(descriptor) if descriptor >= 0 else -1
        self._endpoint = endpoint
        self._loop = endpoint.loop
        self._text = b""
        if self._descriptor >= 0:
            os.set_blocking(self._descriptor, False)
            self._loop.call_soon_threadsafe(self._loop.add_reader, self._descriptor, self._on_readable)

    def _on_readable(self) -> None:
        try:
            text = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:  # another process of this one's making has read it
            return
        *lines, self._text = (self._text + text).split(b"\n")
        for line in lines:
            message = json.loads(line)
            role, rank, why = message["role"], message["rank"], f"the launcher has given it up: {message['why']}"
            self._endpoint.give_up(role, rank, why)
            if not self.alarm.done():
                self.alarm.set_exception(PeerLostError(self._endpoint.describe(role, rank), why))
        if not text:  # the launcher is gone, and this process is about to be stopped
            self._loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """Stops following. On the loop."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

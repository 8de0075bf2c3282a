"""Signs of life of a sampling worker or a server: a byte a second, from a thread that its work does not hold up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import Callable

from ..config import PULSE_INTERVAL_S, RpcSettings

_LATE_S = 0.5  # a check that comes so late means that this process was stopped itself
_READ_BYTES = 4096


def start_pulse(descriptor: int) -> None:
    """Writes a byte every ``PULSE_INTERVAL_S`` from a daemon thread, until the other end of the pipe is closed."""

    def beat() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)  # no event but the closing of the other end
        with contextlib.suppress(BrokenPipeError):  # it was closed just now
            while not poll.poll(PULSE_INTERVAL_S * 1000):
                os.write(descriptor, b".")

    os.set_blocking(descriptor, True)
    threading.Thread(target=beat, name="pulse", daemon=True).start()


class PulseWatch:
    """Says when the pulse of a worker has stopped. On one asyncio loop.

    Args:
        descriptor: the reading end of the pipe; owned from here on.
        settings: how often to look, and how long a silence is one.
        on_stopped: called once, with the seconds of silence.
    """

    def __init__(self, descriptor: int, settings: RpcSettings, on_stopped: Callable[[float], None]) -> None:
        self._descriptor = descriptor
        self._settings = settings
        self._on_stopped = on_stopped
        self._loop = asyncio.get_running_loop()
        self._heard = self._checked = self._loop.time()
        os.set_blocking(descriptor, False)
        self._timer = self._loop.call_later(settings.heartbeat_interval_s, self._check)

    def _check(self) -> None:
        now, interval_s = self._loop.time(), self._settings.heartbeat_interval_s
        was_stopped = now - self._checked > interval_s + _LATE_S
        self._checked = now
        # Read before judging: what came while this loop was busy counts.
        if self._read() or was_stopped:
            self._heard = now
        silence_s = now - self._heard
        if silence_s > self._settings.heartbeat_timeout_s:
            self._on_stopped(silence_s)
        else:
            self._timer = self._loop.call_later(interval_s, self._check)

    def _read(self) -> bool:
        try:
            return bool(os.read(self._descriptor, _READ_BYTES))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Stops looking. Idempotent."""
        self._timer.cancel()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

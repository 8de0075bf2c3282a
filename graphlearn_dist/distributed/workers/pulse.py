"""Signs of life of a sampling worker or a server, every second, from threads that its work does not hold up.

Each is one byte. ``.`` says that the process runs: it comes from native code, whatever Python does. ``+`` says that
its interpreter runs. That may be silent for longer: one call into a library that keeps the interpreter's lock silences
every Python thread, and does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import Callable

from ... import _C
from ...config import PULSE_INTERVAL_S, RpcSettings, interpreter_timeout_s
from ...utils.system.lifetime import start_thread

_PROCESS, _INTERPRETER = b".", b"+"
_LATE_S = 0.5  # a check that comes so late means that this process was stopped itself
_READ_BYTES = 4096


def start_pulse(descriptor: int) -> None:
    """Gives signs of life every ``PULSE_INTERVAL_S``, until the other end of the pipe is closed.

    Args:
        descriptor: the writing end, which stays open.
    """

    def beat() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)  # no event but the closing of the other end
        with contextlib.suppress(BrokenPipeError):  # it was closed just now
            while not poll.poll(PULSE_INTERVAL_S * 1000):
                os.write(descriptor, _INTERPRETER)

    os.set_blocking(descriptor, True)
    _C.start_pulse(descriptor, round(PULSE_INTERVAL_S * 1000), _PROCESS.decode())
    start_thread(threading.Thread(target=beat, name="pulse", daemon=True))


class PulseWatch:
    """Says when the pulse of a worker has stopped. On one asyncio loop.

    Args:
        descriptor: the reading end of the pipe; owned from here on.
        settings: how often to look, and how long a silence of the process is one; of its interpreter
            ``GLD_INTERPRETER_TIMEOUT`` says that.
        on_stopped: called once, with what stopped, in words.
    """

    def __init__(self, descriptor: int, settings: RpcSettings, on_stopped: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._interval_s = settings.heartbeat_interval_s
        self._limits_s = {_PROCESS: settings.heartbeat_timeout_s, _INTERPRETER: interpreter_timeout_s()}
        self._on_stopped = on_stopped
        self._loop = asyncio.get_running_loop()
        self._checked = self._loop.time()
        self._heard = dict.fromkeys(self._limits_s, self._checked)
        os.set_blocking(descriptor, False)
        self._timer = self._loop.call_later(self._interval_s, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        was_stopped = now - self._checked > self._interval_s + _LATE_S
        self._checked = now
        signs = self._read()  # before judging: what came while this loop was busy counts
        self._heard.update({sign: now for sign in self._heard if was_stopped or sign in signs})
        stopped = self._stopped(now)
        if stopped:
            self._on_stopped(stopped)
        else:
            self._timer = self._loop.call_later(self._interval_s, self._check)

    def _stopped(self, now: float) -> str:
        silent_s = {sign: now - heard for sign, heard in self._heard.items()}
        if silent_s[_PROCESS] > self._limits_s[_PROCESS]:
            return f"no sign of life for {silent_s[_PROCESS]:.1f} s"
        if silent_s[_INTERPRETER] > self._limits_s[_INTERPRETER] > 0:
            return f"its interpreter ran nothing for {silent_s[_INTERPRETER]:.1f} s"
        return ""

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Stops looking. Idempotent."""
        self._timer.cancel()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

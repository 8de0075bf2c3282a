"""Signs of life: of a process whose interpreter is held up, and of one that stands still."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Iterator

import pytest

from graphlearn_dist import _C
from graphlearn_dist.cluster.jobs import wrapper
from graphlearn_dist.config import RpcSettings
from graphlearn_dist.distributed.workers.pulse import PulseWatch, start_pulse

DEADLINE_S = 60.0  # only ever reached by a hang
_holding_the_lock = ctypes.PyDLL(None)  # its functions run with the interpreter's lock


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading and the writing end; the latter is left to the threads that write there."""
    read, write = os.pipe()
    yield read, write
    os.close(read)


def test_the_process_gives_signs_while_its_interpreter_does_not(pipe: tuple[int, int]) -> None:
    read, write = pipe
    start_pulse(write)
    assert os.read(read, 1) == b"."  # at once
    _C.start_pulse(write, 10, "x")
    _holding_the_lock.usleep(100_000)
    os.set_blocking(read, False)
    before = os.read(read, 4096)
    _holding_the_lock.usleep(500_000)
    assert b"x" in before
    assert set(os.read(read, 4096)) == set(b"x")
    os.set_blocking(read, True)
    while os.read(read, 1) != b"+":
        pass


@pytest.mark.parametrize(
    ("heartbeat_s", "interpreter_s", "why"),
    [(0.3, "30", "no sign of life for "), (30.0, "0.3", "its interpreter ran nothing for ")],
)
def test_a_pulse_that_stops(
    heartbeat_s: float, interpreter_s: str, why: str, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLD_INTERPRETER_TIMEOUT", interpreter_s)
    _, write = pipe

    async def watch() -> str:
        stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        settings = RpcSettings(heartbeat_interval_s=0.05, heartbeat_timeout_s=heartbeat_s)
        pulse = PulseWatch(os.dup(pipe[0]), settings, stopped.set_result)
        try:
            return await asyncio.wait_for(stopped, DEADLINE_S)
        finally:
            pulse.close()

    if heartbeat_s > 1.0:
        _C.start_pulse(write, 10, ".")
    assert asyncio.run(watch()).startswith(why)


class Clock:
    """The time, as the test has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self._now)

    def later(self, seconds: int, pulse: wrapper._Pulse, signs: bytes, write: int) -> list[str]:
        """What is said to have stopped in these seconds, in each of which the signs come."""
        found = []
        for _ in range(seconds):
            self._now += 1.0
            os.write(write, signs)
            found += [stopped] if (stopped := pulse.stopped()) else []
        return found

    def skip(self, seconds: float) -> None:
        """This process itself stands still."""
        self._now += seconds


def test_who_watches_a_server(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = pipe
    clock = Clock(monkeypatch)
    pulse = wrapper._Pulse(read, {b".": 3.0, b"+": 30.0})
    assert clock.later(100, pulse, b"", write) == []  # it gives no signs: it is not watched
    assert clock.later(100, pulse, b".", write) == []  # of its interpreter it gives none
    assert clock.later(5, pulse, b".+", write) == []
    assert clock.later(30, pulse, b".", write) == []
    assert clock.later(1, pulse, b".", write) == ["its interpreter ran nothing for 30 s"]
    assert clock.later(5, pulse, b".+", write) == []
    clock.skip(60.0)
    assert clock.later(3, pulse, b"", write) == []  # who stood still blames nobody
    assert clock.later(2, pulse, b"", write) == ["no sign of life for 3 s"]
    assert clock.later(1, pulse, b".+", write) == []
    os.close(write)  # it has ended, or gives no more signs
    clock.skip(1.0)
    assert pulse.stopped() == ""
    clock.skip(1.0)
    assert pulse.stopped() == ""


def test_a_watch_that_is_off(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = pipe
    clock = Clock(monkeypatch)
    pulse = wrapper._Pulse(read, {b".": 3.0, b"+": 0.0})
    assert clock.later(3, pulse, b".+", write) == []
    assert clock.later(1000, pulse, b".", write) == []
    os.close(write)

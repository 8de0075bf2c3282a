"""Long work of the core lets other Python threads run."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from graphlearn_dist import _C

NUM_NODES = 2_000_000
SMALL_TABLE = 250_000  # is filled, and not dropped
MANY = 500_000
DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def only_who_releases_the_gil() -> Iterator[None]:
    """No thread loses the GIL by the interpreter's clock: another one runs where it is released."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    yield
    sys.setswitchinterval(interval)


def clears_a_table() -> Callable[[], object]:
    builders = itertools.cycle([_C.BatchBuilder([SMALL_TABLE] * 20, []) for _ in range(100)])

    def begin() -> None:
        builder = next(builders)
        builder.begin(1, 0, False)
        builder.begin(SMALL_TABLE, 0, False)

    return begin


def adds_many_seeds() -> Callable[[], object]:
    builder, seeds = _C.BatchBuilder([NUM_NODES], []), np.arange(MANY)  # torch releases the GIL itself

    def add() -> None:
        builder.begin(MANY, 0, False)
        builder.add_seeds(0, seeds)

    return add


def asks_for_times_of_many() -> Callable[[], object]:
    builder, seeds = _C.BatchBuilder([NUM_NODES], []), np.arange(MANY)  # torch releases the GIL itself
    builder.begin(MANY, 0, False, True)
    builder.add_seeds(0, seeds, seeds)
    return lambda: builder.frontier(0)


def gives_idle_memory_back() -> Callable[[], object]:
    written = bytes(8 << 20)

    def trim() -> None:
        buffer = _C.Buffer(len(written))
        memoryview(buffer)[:] = written
        del buffer
        _C.trim_pool()

    return trim


@pytest.mark.parametrize("prepare", [clears_a_table, adds_many_seeds, asks_for_times_of_many, gives_idle_memory_back])
def test_other_threads_run_meanwhile(prepare: Callable[[], Callable[[], object]]) -> None:
    work = prepare()
    gate, has_run = threading.Lock(), []
    gate.acquire()

    def wait() -> None:
        with gate:
            has_run.append(True)

    other = threading.Thread(target=wait)
    other.start()
    gate.release()
    deadline = time.monotonic() + DEADLINE_S
    try:
        while not has_run and time.monotonic() < deadline:
            work()
        assert has_run, "no other thread got the GIL"
    finally:
        other.join()

"""Fixtures of the launcher's tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launch_job import DEADLINE_S, LINGER, SERVER, TRAINER, Job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    job.script("server.py", SERVER)
    job.script("train.py", TRAINER)
    job.script("linger.py", LINGER)
    yield job
    job.kill_all()


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Returns when the condition holds; fails when it does not within the deadline."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.02)

    return wait

"""Fixtures of the launcher's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_job import LINGER, SERVER, TRAINER, Job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    job.script("server.py", SERVER)
    job.script("train.py", TRAINER)
    job.script("linger.py", LINGER)
    yield job
    job.kill_all()

"""A Ray of the driver's own: its files are where it was told, and nothing of it is left when the driver has ended."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support import ray_driver
from tests.support.jobs import wait_ended
from tests.support.processes import start

DEADLINE_S = 120.0  # only ever reached by a hang
DRIVE = f"{ray_driver.__name__}.{ray_driver.drive.__name__}"


def test_nothing_is_left_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray writes a token there
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # The paths of Ray's sockets lie below it, and must be short.
    with tempfile.TemporaryDirectory(prefix="ray-") as log_dir, start(DRIVE, log_dir=log_dir) as driver:
        started = driver.wait(DEADLINE_S)
        assert len(started) > 4
        assert list(Path(log_dir).glob("session_2*/logs/raylet.out"))
        assert not os.path.exists(os.path.join(log_dir, "other"))
        wait_ended(started, DEADLINE_S)

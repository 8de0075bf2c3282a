"""What all tests of processes share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _partitions_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes of a test run on one host, where they would read each other's partitions in place; tests are about
    the way between hosts unless they say otherwise."""
    monkeypatch.setenv("GLD_SHARE_PARTITIONS", "0")

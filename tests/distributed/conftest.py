"""What all tests of processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphlearn_dist.distributed.workers.fork_server import hold_fork_server


@pytest.fixture(autouse=True)
def _partitions_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes of a test run on one host, where they would read each other's partitions in place; tests are about
    the way between hosts unless they say otherwise."""
    monkeypatch.setenv("GLD_SHARE_PARTITIONS", "0")


@pytest.fixture(scope="module")
def one_fork_server() -> Iterator[None]:
    """One process that sampling workers are forked from for all loaders of a file, not one each."""
    with hold_fork_server():
        yield


@pytest.fixture(scope="module")
def over_unix_sockets() -> Iterator[None]:
    """For files that are about what processes of one host share, also where the environment has them speak TCP."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLD_UNIX_SOCKETS", "1")
        yield

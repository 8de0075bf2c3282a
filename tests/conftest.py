"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from graphlearn_dist.utils.system.ports import reserved_port

# No example fails for what it takes on a machine that is busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests run in one process, and those that share a Ray, which takes long to start, all in one."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "ray" if nodeid.startswith("tests/cluster/groups/") else super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.fixture
def port() -> Iterator[int]:
    """A port for the processes of one test; nobody else is given it meanwhile."""
    with reserved_port() as number:
        yield number

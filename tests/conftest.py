"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from graphlearn_dist.utils.ports import reserved_port

# No example fails for what it takes on a machine that is busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def port() -> Iterator[int]:
    """A port for the processes of one test; nobody else is given it meanwhile."""
    with reserved_port() as number:
        yield number

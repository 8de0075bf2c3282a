"""The same tests over both engines, and over a pair that speaks with one another."""

from __future__ import annotations

import itertools

import pytest

from graphlearn_dist.rpc.engine import engines as engine_module

ENGINES = {"native": ("native",), "python": ("python",), "mixed": ("native", "python")}


@pytest.fixture(params=ENGINES)
def engines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The endpoints that a test opens have these engines in turn."""
    names = itertools.cycle(ENGINES[request.param])
    monkeypatch.setattr(engine_module, "rpc_engine", lambda: next(names))
    return str(request.param)

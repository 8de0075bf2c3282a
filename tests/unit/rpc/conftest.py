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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The registry knows no engine: one of them is enough for ``make test``."""
    for item in items:
        call = getattr(item, "callspec", None)
        if "test_rpc_registry.py::" in item.nodeid and call is not None and call.params.get("engines") != "native":
            item.add_marker(pytest.mark.thorough)

"""Both engines for the tests of worker groups: local processes, and one Ray of three simulated nodes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from graphlearn_dist.cluster.actors.base import ActorBackend
from graphlearn_dist.cluster.actors.local import LocalActors
from tests.support.ray_nodes import RayNodes, running_nodes

CPUS = 8
# Of the tests that run on each engine, those that `make test` runs on Ray too.
SMOKE_ON_RAY = ("test_actors.py::", "test_worker_groups.py::test_cluster[", "test_group_failures.py::test_sys_exit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What local processes show of both engines, Ray shows in ``make test-all``."""
    for item in items:
        engines = getattr(item, "callspec", None)
        on_ray = engines is not None and "ray" in (engines.params.get("backend"), engines.params.get("run"))
        if on_ray and not any(name in item.nodeid for name in SMOKE_ON_RAY):
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="package")  # other tests count the children of this process
def ray_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """A Ray of a head and two nodes, to which this process is connected."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'graphlearn_dist[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # Ray writes a token there
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        with running_nodes(CPUS) as nodes:
            import ray

            ray.init(address=nodes.address, namespace="tests", log_to_driver=False)
            try:
                yield nodes
            finally:
                ray.shutdown()


@pytest.fixture(params=["local", "ray"], scope="module")
def backend(request: pytest.FixtureRequest) -> ActorBackend:
    """Each engine in turn."""
    if request.param == "local":
        return LocalActors()
    request.getfixturevalue("ray_nodes")
    from graphlearn_dist.cluster.actors.ray_engine import RayActors

    return RayActors()

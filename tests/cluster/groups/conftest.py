"""Both engines for the tests of worker groups: local processes, and one Ray of three simulated nodes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from graphlearn_dist.cluster.actors.base import ActorBackend
from graphlearn_dist.cluster.actors.local import LocalBackend

CPUS = 8
STARTS = 3  # Ray gives a node 30 s to start, which a busy machine may miss


@pytest.fixture(scope="session")
def ray_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A ``ray.cluster_utils.Cluster`` of a head and two nodes, to which this process is connected."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'graphlearn_dist[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # Ray writes a token there
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        import ray

        cluster = _start_nodes()
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def _start_nodes() -> Any:
    import ray
    from ray.cluster_utils import Cluster

    health = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    node = {"num_cpus": CPUS, "object_store_memory": 80 << 20, "include_dashboard": False}
    for attempt in range(STARTS):
        cluster = Cluster()
        try:
            cluster.add_node(**node, _system_config=health, resources={"head": 1})
            for name in ("first", "second"):
                cluster.add_node(**node, resources={name: 1})
            cluster.wait_for_nodes()
            ray.init(address=cluster.address, namespace="tests", log_to_driver=False)
        except Exception:
            ray.shutdown()
            cluster.shutdown()
            if attempt == STARTS - 1:
                raise
        else:
            return cluster
    raise AssertionError("unreachable")


@pytest.fixture(params=["local", "ray"])
def backend(request: pytest.FixtureRequest) -> ActorBackend:
    """Each engine in turn."""
    if request.param == "local":
        return LocalBackend()
    request.getfixturevalue("ray_nodes")
    from graphlearn_dist.cluster.actors.ray_engine import RayBackend

    return RayBackend()

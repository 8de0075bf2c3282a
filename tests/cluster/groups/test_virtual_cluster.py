"""What a virtual cluster holds, on both engines: bundles, names and ports."""

from __future__ import annotations

from typing import Any

import pytest

from graphlearn_dist.cluster import RayVirtualCluster, RayWorkerGroup
from graphlearn_dist.cluster.actors.base import ActorBackend
from graphlearn_dist.errors import InvalidArgumentError, ResourceInsufficientError
from tests.support.cluster_workers import Worker
from tests.support.ray_nodes import RayNodes

DEADLINE_S = 60.0  # only ever reached by a hang
LOWEST = 23100


def cluster_of(bundles: list[int], backend: ActorBackend, **keywords: Any) -> RayVirtualCluster:
    return RayVirtualCluster(bundles, use_gpus=False, backend=backend, max_retries=0, **keywords)


def test_all_ports_of_a_range_are_given_once(backend: ActorBackend) -> None:
    """Whoever asks for as many as there are gets them all, also where a machine is asked for many at a time."""
    count = 20
    with cluster_of([2], backend, port_range_low=LOWEST, port_range_high=LOWEST + count - 1) as cluster:
        addresses = [cluster.get_available_address_and_port(0, 1)]
        addresses += cluster.get_available_addresses_and_ports_batch([(0, 0), (0, 1)] * 9, batch_size=8)
        with pytest.raises(ResourceInsufficientError, match="all are taken, 20 of them given out before"):
            cluster.get_available_addresses_and_ports_batch([(0, 0)] * 2)
        addresses.append(cluster.get_master_address_and_port())  # which the call that failed did not use up
        assert sorted(port for _, port in addresses) == list(range(LOWEST, LOWEST + count))
        with pytest.raises(ResourceInsufficientError, match=f"{LOWEST} to {LOWEST + count - 1}"):
            cluster.get_available_address_and_port(0, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((2, 0), IndexError, "pg_idx: expected 0 to 1, got 2"),
        ((-1, 0), IndexError, "pg_idx: expected 0 to 1, got -1"),
        ((1, 1), IndexError, "bundle_idx: expected 0 to 0 in placement group 1, got 1"),
        ((0, -1), IndexError, "bundle_idx: expected 0 to 1 in placement group 0, got -1"),
    ],
)
def test_bundles_that_are_not_there(
    backend: ActorBackend, arguments: tuple[int, int], error: type[Exception], said: str
) -> None:
    with cluster_of([2, 0, 1], backend) as cluster:
        with pytest.raises(error, match=said) as caught:
            cluster.get_available_address_and_port(*arguments)
        assert isinstance(caught.value, InvalidArgumentError)
        for size in (0, -1):
            with pytest.raises(InvalidArgumentError, match=f"batch_size: expected at least 1, got {size}"):
                cluster.get_available_addresses_and_ports_batch([(0, 0)], batch_size=size)


def test_names_that_nobody_chose_are_different(backend: ActorBackend) -> None:
    """Of two clusters, and of two groups that share one."""
    with cluster_of([1], backend, enable_colocation=True) as cluster, cluster_of([1], backend) as other:
        assert cluster.shape.name != other.shape.name
        assert other.get_placement_groups()[0].bundle_count == 1
        name = f"{Worker.__module__}.{Worker.__qualname__}"
        with RayWorkerGroup(cluster, Worker) as first, RayWorkerGroup(cluster, name) as second:
            names = [group.worker_metadata[0]["name"] for group in (first, second)]
            assert names[0] != names[1]
            assert all(one.startswith("Worker-") and one.endswith("-0-0") for one in names)
            assert sorted(cluster.memory_usage(DEADLINE_S)) == sorted([first.name_prefix, second.name_prefix])


# --- on Ray -----------------------------------------------------------------------------------------------------


def test_what_was_held_is_given_back_where_a_name_is_taken(ray_nodes: RayNodes) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    from graphlearn_dist.cluster.actors.ray_engine import RayActors

    taken = placement_group([{"CPU": 1}], name="y-node1")
    try:
        with cluster_of([1, 1], RayActors(), name="y") as cluster:
            with pytest.raises(InvalidArgumentError, match=r"name: expected one that no placement group .* 'y-node1'"):
                cluster.get_placement_groups()
            held = {one["name"]: one["state"] for one in ray.util.placement_group_table().values()}
            assert held["y-node0"] == "REMOVED"
    finally:
        remove_placement_group(taken)


@pytest.mark.parametrize(("timeout_s", "waited"), [(1.0, [1, 0]), (2.5, [3, 0]), (0.0, [0, 0])])
def test_waits_are_not_cut_short(timeout_s: float, waited: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray counts whole seconds, and drops the rest: with 0.99 it did not wait at all."""
    pytest.importorskip("ray")
    from graphlearn_dist.cluster.actors import ray_engine
    from graphlearn_dist.cluster.actors.base import Reservation, ReservationRequest

    now = [5.0]

    class Placed:
        """Never placed. A clock that moves a little whenever it is asked, and by what Ray waits."""

        def __init__(self) -> None:
            self.asked: list[int] = []

        def wait(self, timeout_seconds: float) -> bool:
            self.asked.append(int(timeout_seconds))
            now[0] += int(timeout_seconds)
            return False

    def clock() -> float:
        now[0] += 1e-6
        return now[0]

    monkeypatch.setattr(ray_engine.time, "monotonic", clock)
    placed = Placed()
    requests = [ReservationRequest(name, [], "PACK") for name in "ab"]
    held = [Reservation(request, None, placed) for request in requests]  # type: ignore[arg-type]
    assert ray_engine._wait_placed(held, timeout_s) == ["a", "b"]
    assert placed.asked == waited

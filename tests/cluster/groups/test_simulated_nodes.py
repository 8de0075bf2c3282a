"""Placement on the three simulated nodes of the Ray of these tests, and a node that is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from graphlearn_dist.cluster import RayVirtualCluster, RayWorkerGroup, WorkerState
from graphlearn_dist.cluster.actors.base import ActorBackend
from tests.support.cluster_workers import Worker
from tests.support.ray_nodes import RayNodes

pytestmark = pytest.mark.thorough
DEADLINE_S = 60.0  # only ever reached by a hang


def ray_backend() -> ActorBackend:
    from graphlearn_dist.cluster.actors.ray_engine import RayActors

    return RayActors()


def nodes_of(group: RayWorkerGroup) -> list[str]:
    return [status.node for status in group.get_worker_status(DEADLINE_S)]


def test_one_machine_for_a_node_and_different_ones_for_different_nodes(ray_nodes: RayNodes) -> None:
    import ray

    with RayVirtualCluster([2, 1, 2], use_gpus=False, name="spread", backend="ray") as cluster:
        with RayWorkerGroup(cluster, Worker, name_prefix="spread") as group:
            first, same, second, third, again = nodes_of(group)
            assert (first, third) == (same, again)
            assert len({first, second, third}) == 3
            named = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
            assert {"spread-0-0", "spread-0-1", "spread-1-0", "spread-2-0", "spread-2-1"} <= named
    named = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    assert not any(name.startswith("spread-") for name in named)


def test_a_unified_group_over_all_machines(ray_nodes: RayNodes) -> None:
    with RayVirtualCluster(
        [1, 1, 1],
        use_gpus=False,
        name="unified",
        unified=True,
        placement_group_strategy="STRICT_SPREAD",
        backend=ray_backend(),
    ) as cluster:
        assert [held.bundle_count for held in cluster.get_placement_groups()] == [3]
        with RayWorkerGroup(cluster, Worker, name_prefix="unified") as group:
            assert len(set(nodes_of(group))) == 3
            names = ["RANK", "LOCAL_RANK", "GLD_LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"]
            told = cluster.backend.get([worker.environ.remote(*names) for worker in group.workers], DEADLINE_S)
            assert told == [[str(rank), "0", "0", "1", str(rank), str(rank)] for rank in range(3)]


def test_ranks_of_a_unified_group_go_machine_by_machine(ray_nodes: RayNodes) -> None:
    """Ray deals bundles out to machines in turn; the local rank of a worker may serve as the index of its device."""
    with RayVirtualCluster(
        [5], use_gpus=False, name="dealt", unified=True, placement_group_strategy="SPREAD", backend=ray_backend()
    ) as cluster:
        [held] = cluster.reservations()
        assert sorted(cluster.backend.bundle_nodes(held)) != cluster.backend.bundle_nodes(held)
        with RayWorkerGroup(cluster, Worker, name_prefix="dealt") as group:
            nodes = nodes_of(group)
            machines = list(dict.fromkeys(nodes))
            assert len(machines) == 3
            assert nodes == sorted(nodes, key=machines.index)
            names = ["RANK", "NODE_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
            told = cluster.backend.get([worker.environ.remote(*names) for worker in group.workers], DEADLINE_S)
            for rank, node in enumerate(nodes):
                place = [machines.index(node), nodes[:rank].count(node), nodes.count(node)]
                assert told[rank] == [str(number) for number in [rank, *place]]


def test_workers_of_a_lost_node_go_on_elsewhere(ray_nodes: RayNodes) -> None:
    """They were waited for until their machine joined, which nobody else gets while they have it."""
    spare: dict[str, Any] = {"num_cpus": 2, "resources": {"spare": 2}}
    wanted: dict[str, Any] = {"use_gpus": False, "node_resource_constraints": {"spare": 1.0}}
    with RayVirtualCluster([2], name="lost", backend=ray_backend(), **wanted) as cluster:
        with ThreadPoolExecutor(1) as pool:
            reserving = pool.submit(cluster.get_placement_groups)
            ours = ray_nodes.add_node(**spare)
            assert reserving.result(DEADLINE_S)[0].bundle_count == 2
        with RayVirtualCluster([1], name="late", backend="ray", ready_timeout_s=0.2, **wanted) as other_cluster:
            with pytest.raises(TimeoutError, match=r"(?s)'late-node0'.*asked for: .*'spare': 1.*free: "):
                other_cluster.get_placement_groups()
        with RayWorkerGroup(cluster, Worker, name_prefix="lost", restart_on_failure=True) as group:
            assert set(nodes_of(group)) == {ours}
            other = ray_nodes.add_node(**spare)
            ray_nodes.remove_node(ours)
            for slot in group._slots:
                assert slot.wait_restarted(0, DEADLINE_S)
            for status in group.get_worker_status(DEADLINE_S):
                assert (status.state, status.node, status.restarts) == (WorkerState.READY, other, 1)
            assert group.run_all_workers_single_data("add", 3) == [3, 3]
    ray_nodes.remove_node(other)

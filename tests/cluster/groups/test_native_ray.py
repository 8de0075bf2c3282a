"""What the cluster layer takes from Ray and hands to it: placement groups, references, handles."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest

from graphlearn_dist.cluster import RayVirtualCluster, RayWorkerBuilder, RayWorkerGroup
from graphlearn_dist.cluster.actors.local import LocalActors
from graphlearn_dist.errors import InvalidArgumentError
from tests.support.cluster_workers import Broken, Hanging, Worker
from tests.support.ray_nodes import RayNodes

NAME = f"{Worker.__module__}.{Worker.__qualname__}"
DEADLINE_S = 60.0  # only ever reached by a hang


@pytest.fixture(scope="module")
def cluster(ray_nodes: RayNodes) -> Iterator[RayVirtualCluster]:
    with RayVirtualCluster([2], use_gpus=False, backend="ray", max_colocated_worker_groups=3) as made:
        yield made


@pytest.fixture
def bundles(ray_nodes: RayNodes) -> Iterator[Any]:
    """A placement group that Ray was asked for itself."""
    import ray

    made = ray.util.placement_group([{"CPU": 2}] * 2, strategy="STRICT_PACK")
    yield made
    ray.util.remove_placement_group(made)


def test_the_builder_takes_rays_placement_groups(bundles: Any) -> None:
    import ray

    builder = RayWorkerBuilder(NAME, 7)
    called = builder(bundles, 0, 0.0, runtime_env={"env_vars": {"GLD_TEST": "called"}}, name="called")
    ref, initializer = builder.create_worker_async(bundles, 1, 0.0, name="later")
    assert isinstance(ref, ray.ObjectRef)
    later = ray.get(ref, timeout=DEADLINE_S)
    del ref  # with which the reference goes that the worker came with, and not the worker
    assert ray.get([called.add.remote(1), later.add.remote(value=2)], timeout=DEADLINE_S) == [8, 9]
    assert ray.get(called.environ.remote("GLD_TEST"), timeout=DEADLINE_S) == ["called"]
    assert ray.util.placement_group_table(bundles)["state"] == "CREATED"
    ray.kill(initializer)  # as the documents do, whoever holds it; ours has ended by itself
    isolated = ray.remote(RayWorkerBuilder.IsolatedWorkerInitializer).options(num_cpus=0).remote(NAME, offset=5)
    own = ray.get(isolated.create_worker.remote(bundles, 0, 0.0, name="own"), timeout=DEADLINE_S)
    assert ray.get(own.add.remote(1), timeout=DEADLINE_S) == 6
    for handle in (called, later, own):
        ray.kill(handle)
        wait_killed(handle)


def wait_killed(handle: Any) -> None:
    """Ray kills a moment after it was asked to."""
    import ray

    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            ray.get(handle.add.remote(1), timeout=DEADLINE_S)
        except ray.exceptions.RayActorError:
            return
    raise AssertionError("the worker lives")


def test_what_keeps_a_worker_from_being_made_comes_out_of_its_reference(bundles: Any) -> None:
    import ray

    for target, options, error, said in (
        (f"{Worker.__module__}.NoClass", {}, InvalidArgumentError, "NoClass"),
        (f"{Broken.__module__}.{Broken.__qualname__}", {}, Exception, "missing"),
        (f"{Hanging.__module__}.{Hanging.__qualname__}", {"start_timeout_s": 3.0}, TimeoutError, "within 3 s"),
    ):
        ref, _ = RayWorkerBuilder(target).create_worker_async(bundles, 0, 0.0, **options)
        with pytest.raises(error, match=said):
            ray.get(ref, timeout=DEADLINE_S)
    for wrong, bundle, said in (
        (bundles, 2, "placement_group_bundle_index: expected 0 to 1, got 2"),
        (bundles, -1, "placement_group_bundle_index: expected 0 to 1, got -1"),
        ("bundles", 0, "placement_group: expected Ray's, or one of .* got 'bundles'"),
    ):
        for start in (RayWorkerBuilder(NAME), RayWorkerBuilder(NAME).create_worker_async):
            with pytest.raises(InvalidArgumentError, match=said):
                start(wrong, bundle, 0.0)


def test_placement_groups_of_a_cluster_are_rays(cluster: RayVirtualCluster) -> None:
    import ray
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    [held] = cluster.get_placement_groups()
    assert isinstance(held, PlacementGroup)
    assert held.bundle_specs == [{"CPU": 3.0}] * 2
    strategy = PlacementGroupSchedulingStrategy(held, placement_group_bundle_index=1)
    task = ray.remote(num_cpus=1, scheduling_strategy=strategy)(lambda: ray.util.get_current_placement_group().id.hex())
    assert ray.get(task.remote(), timeout=DEADLINE_S) == held.id.hex()


def test_handles_go_to_tasks_and_can_be_killed(cluster: RayVirtualCluster) -> None:
    import ray

    def add(worker: Any, value: int, others: list[Any]) -> tuple[Any, list[int]]:
        items = [ray.get(item) for item in worker.count.remote(2)]
        return ray.get(worker.add.remote(value)), [*items, *ray.get([other.add.remote(1) for other in others])]

    with RayWorkerGroup(cluster, Worker, worker_args=(10,), name_prefix="sent", restart_on_failure=True) as group:
        task = ray.remote(num_cpus=0)(add)
        told = ray.get(task.remote(group.workers[0], 5, group.workers), timeout=DEADLINE_S)
        assert told == (15, [10, 11, 11, 11])
        assert repr(group.workers[1]) == "GroupWorkerHandle(sent-0-1)"
        assert {"add", "echo"} <= set(dir(group.workers[0]))
        slot = group._slots[0]
        ray.kill(group.workers[0])
        assert slot.wait_restarted(0, DEADLINE_S)
        assert ray.get(group.workers[0].add.remote(1), timeout=DEADLINE_S) == 11


def test_what_is_local_says_that_it_cannot_be_sent() -> None:
    with RayVirtualCluster([1], use_gpus=False, backend=LocalActors()) as cluster:
        builder = RayWorkerBuilder(NAME, 7)
        ref, _ = builder.create_worker_async(cluster.get_placement_groups()[0], 0, 0.0, name="local")
        handle = ref.future().result(DEADLINE_S)
        for send in (pickle.dumps, copy.deepcopy):
            with pytest.raises(InvalidArgumentError, match=r"Handle\(local\): expected .* on Ray .* local worker"):
                send(handle)
            with pytest.raises(InvalidArgumentError, match="expected one of Ray to be sent"):
                send(handle.add.remote(1))

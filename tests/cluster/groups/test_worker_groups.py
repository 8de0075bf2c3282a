"""What both engines promise of a group of workers that stay alive."""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphlearn_dist.cluster import NamedSharding, RayVirtualCluster, RayWorkerBuilder, RayWorkerGroup
from graphlearn_dist.cluster.actors.base import ActorBackend, ActorSpec, GroupWorkerHandle
from graphlearn_dist.cluster.groups.worker_groups import MultiWorkerFuture
from graphlearn_dist.cluster.machines.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
from graphlearn_dist.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    ResourceInsufficientError,
    WorkerFailureError,
    WorkerNameTakenError,
)
from tests.support.cluster_workers import Broken, Worker

NAME = f"{Worker.__module__}.{Worker.__qualname__}"
DEADLINE_S = 60.0  # only ever reached by a hang


@pytest.fixture(scope="module")
def cluster(backend: ActorBackend) -> Iterator[RayVirtualCluster]:
    with RayVirtualCluster(
        [2, 0, 2], use_gpus=False, name="calls", max_colocated_worker_groups=2, backend=backend
    ) as made:
        yield made


@pytest.fixture(scope="module")
def env_vars() -> dict[str, str]:
    return {"GLD_TEST": "group", "RANK": "is the group's"}


@pytest.fixture(scope="module")
def group(cluster: RayVirtualCluster, env_vars: dict[str, str]) -> Iterator[RayWorkerGroup]:
    """Four workers, 0 and 1 on the first node, in a grid of 2 x 2."""
    builder = RayWorkerBuilder(NAME, 100, path="p")
    layout = NamedSharding([[0, 1], [2, 3]], ["dp", "tp"])
    with RayWorkerGroup(cluster, builder, name_prefix="grid", sharding_annotations=layout, env_vars=env_vars) as made:
        yield made


def get(group: RayWorkerGroup, refs: list[Any]) -> list[Any]:
    return group.cluster.backend.get(refs, DEADLINE_S)


# --- what a group is --------------------------------------------------------------------------------------------


def test_cluster(cluster: RayVirtualCluster, group: RayWorkerGroup) -> None:
    assert (cluster.world_size(), cluster.node_count()) == (4, 2)
    assert [held.bundle_count for held in cluster.get_placement_groups()] == [2, 2]
    assert cluster.get_placement_groups()[0].bundle_specs == [{"CPU": 2.0}] * 2
    pairs = [(1, 1), (0, 0), (1, 0)] * 2
    addresses = cluster.get_available_addresses_and_ports_batch(pairs, batch_size=4)
    assert len(set(addresses)) == len(pairs)
    assert cluster.get_master_address_and_port() not in addresses
    assert (group.master_address, group.master_port) not in addresses


def test_ports_of_a_range(backend: ActorBackend) -> None:
    with RayVirtualCluster(
        [1], False, port_range_low=23000, port_range_high=23060, backend=backend, name="ports"
    ) as cluster:
        ports = [cluster.get_master_address_and_port()[1] for _ in range(3)]
        assert len(set(ports)) == 3
        assert all(23000 <= port <= 23060 for port in ports)
        assert cluster.shutdown()
        assert cluster.shutdown()
        with pytest.raises(InvalidArgumentError, match="shut down"):
            cluster.get_placement_groups()


def test_bundles_go_with_the_last_reference(backend: ActorBackend) -> None:
    cluster = RayVirtualCluster([1], False, backend=backend, name="dropped")
    actor = backend.create(ActorSpec("", Worker, reservation=cluster.reservations()[0]))
    actor.ready.result(DEADLINE_S)
    del cluster
    assert backend.is_death(actor.ended.exception(DEADLINE_S))


def test_gpus_that_are_not_there(backend: ActorBackend) -> None:
    with RayVirtualCluster([1], backend=backend, max_retries=0, name="gpus") as cluster:
        with pytest.raises(ResourceInsufficientError, match=r"(?s)'GPU': 1.*there is"):
            cluster.get_placement_groups()


def test_places_names_and_environment(group: RayWorkerGroup, env_vars: dict[str, str]) -> None:
    assert (group.world_size, group.dp_size, group.dp_leader_worker_indices) == (4, 4, [0, 1, 2, 3])
    assert [w["name"] for w in group.worker_metadata] == ["grid-0-0", "grid-0-1", "grid-1-0", "grid-1-1"]
    assert group.get_dp_leader_worker_idx(3) == 3
    for bad in (-1, 4):
        with pytest.raises(IndexError, match="0 to 3"):
            group.get_dp_leader_worker_idx(bad)
    names = ["RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLD_TEST"]
    names += ["GLD_WORKER_NAME", "GLD_COMMUNICATION_BACKEND"]
    told = get(group, [worker.environ.remote(*names) for worker in group.workers])
    master = [group.master_address, str(group.master_port)]
    places = [("0", "0"), ("1", "0"), ("0", "1"), ("1", "1")]
    for rank, (worker, (local, node)) in enumerate(zip(told, places, strict=True)):
        name = f"grid-{node}-{local}"
        assert worker == [str(rank), local, node, "4", *master, "group", name, "gloo"]
    assert env_vars == {"GLD_TEST": "group", "RANK": "is the group's"}
    assert "GLD_TEST" not in os.environ


# --- calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "results"),
    [
        ({"in_sharded_axes": ["dp"], "replicate_on_axes": ["tp"], "value": [1, 2]}, [101, 101, 102, 102]),
        (
            {
                "in_sharded_axes": ["dp"],
                "replicate_on_axes": ["tp"],
                "output_is_replicated": ["tp"],
                "value": [1, 2],
            },
            [101, 102],
        ),
        ({"in_sharded_axes": ["tp"], "value": [1, 2], "common_kwargs": {"times": 2}}, [102, 104]),
        ({"in_sharded_axes": ["tp", "dp"], "value": [[1, 2], [3, 4]]}, [101, 103, 102, 104]),
        ({"replicate_on_axes": ["tp"], "value": 7}, [107, 107]),
        ({"value": 7}, [107]),
    ],
)
def test_sharded_data(group: RayWorkerGroup, arguments: dict[str, Any], results: list[int]) -> None:
    future = group.run_all_workers_sharded_data("add", **arguments)
    assert group.get_all_worker_results(future) == results
    assert asyncio.run(_wait(future)) == results


async def _wait(future: Any) -> Any:
    return await future


def test_dummy_calls(group: RayWorkerGroup) -> None:
    future = group.run_all_workers_sharded_data(
        "echo", in_sharded_axes=["tp"], make_dummy_calls_to_free_axes=True, common_kwargs={"c": 1}, x=[5, 6]
    )
    assert (future.called_workers, future.return_from_workers) == ([0, 1, 2, 3], [0, 1])
    assert future.get_results(group) == [{"c": 1, "x": 5}, {"c": 1, "x": 6}]
    assert get(group, future.futures[2:]) == [{"c": 1, "x": None}] * 2


def test_same_and_different_data(group: RayWorkerGroup) -> None:
    assert get(group, [group.run_single_worker_single_data("add", 2, value=1)]) == [101]
    assert get(group, group.run_all_workers_single_data("add", value=1, times=3)) == [103] * 4
    assert get(group, group.run_all_workers_single_data("pid", run_rank_0_only_axes=["tp"])) == get(
        group, [group.workers[rank].pid.remote() for rank in (0, 2)]
    )
    different = group.run_all_workers_multiple_data("add", value=[1, 2, 3, 4], common_kwargs={"times": 2})
    assert get(group, different) == [102, 104, 106, 108]
    assert get(group, group.run_all_workers_multiple_data("add", value=[5, 6], run_rank_0_only_axes=["dp"])) == [
        105,
        106,
    ]


def test_generators(group: RayWorkerGroup) -> None:
    future = group.run_all_workers_sharded_data(
        "count", in_sharded_axes=["dp"], replicate_on_axes=["tp"], output_is_replicated=["tp"], stop=[2, 1]
    )
    proxies = future.get_results(group, return_generators_as_proxies=True)
    assert [group.cluster.backend.is_stream(proxy) for proxy in proxies] == [True, True]
    assert proxies == [future.futures[0], future.futures[2]]
    assert get(group, [next(proxies[0])]) == [100]
    assert future.get_results(group, timeout_s=DEADLINE_S) == [101, 100]


def test_results_of_futures_made_by_hand(group: RayWorkerGroup) -> None:
    refs = [group.cluster.backend.put(text) for text in "abc"]
    assert MultiWorkerFuture(refs).get_results(group) == ["a", "b", "c"]
    assert MultiWorkerFuture(refs).get_results(group, return_generators_as_proxies=True) is refs
    assert MultiWorkerFuture(refs, [2, 0]).get_results(group) == ["c", "a"]
    assert MultiWorkerFuture(refs, [7, 2], [5, 6, 7]).get_results(group) == ["c"]
    assert MultiWorkerFuture(refs, [7, 1]).get_results(group, True) == [refs[1]]
    with pytest.raises(IndexError):
        MultiWorkerFuture(refs, [7, 1]).get_results(group)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda g: g.run_all_workers_single_data("add", 1), AssertionError, "by name only"),
        (lambda g: g.run_single_worker_single_data("add", 0, 1), AssertionError, "by name only"),
        (lambda g: g.run_all_workers_multiple_data("add"), AssertionError, "at least one list"),
        (lambda g: g.run_all_workers_multiple_data("add", value=[1]), AssertionError, "4 items"),
        (lambda g: g.run_all_workers_single_data("nothing"), AttributeError, "'nothing'; it has .*'add'"),
        (lambda g: g.workers[0].nothing.remote(), AttributeError, "nothing"),
        (lambda g: g.run_single_worker_single_data("pid", 4), IndexError, "0 to 3"),
        (lambda g: g.run_single_worker_single_data("pid"), ValueError, "enable_load_balancing"),
        (lambda g: g.run_all_workers_sharded_data("add", in_sharded_axes=["no"], value=[1]), ValueError, "axes of"),
        (
            lambda g: g.run_all_workers_multiple_data("add", value=1),
            AssertionError,
            "value: expected 4 items, .* int 1",
        ),
        (lambda g: g.run_all_workers_sharded_data("add", in_sharded_axes=["dp"], value=[1]), AssertionError, "'dp'"),
        (lambda g: g.run_all_workers_sharded_data("add", in_sharded_axes=["dp"], value=[1] * 3), ValueError, "3 items"),
        (
            lambda g: g.run_all_workers_sharded_data(
                "add", replicate_on_axes=["dp"], output_is_replicated=["t"], value=1
            ),
            AssertionError,
            r"output_is_replicated: .*'tp'\], got \['t'\]",
        ),
    ],
)
def test_calls_that_are_wrong(group: RayWorkerGroup, call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call(group)


def test_what_workers_raise_comes_out_of_the_results(group: RayWorkerGroup) -> None:
    future = group.run_all_workers_sharded_data("fail", in_sharded_axes=["tp"], text=["x", "y"])
    with pytest.raises(ValueError, match=r"x|y"):
        future.get_results(group)


# --- groups of a class ------------------------------------------------------------------------------------------


def test_a_group_of_a_class_waits(cluster: RayVirtualCluster, group: RayWorkerGroup) -> None:
    """On the bundles of the other group; one process fewer on the second node, and a tied pair on the first."""
    with RayWorkerGroup(
        virtual_cluster=cluster,
        worker_class=Worker,
        worker_args=(10,),
        name_prefix="class",
        bundle_indices_list=[(0, [1, 0]), (1, [1])],
        enable_load_balancing=True,
        memory_limit="2GB",
        call_timeout_s=DEADLINE_S,
    ) as made:
        assert [w["name"] for w in made.worker_metadata] == ["class-grp0-0", "class-grp0-1", "class-1-1"]
        assert (made.dp_size, made.get_dp_leader_worker_idx(1)) == (2, 2)
        assert made.run_all_workers_single_data("add", 1, times=2) == [12] * 3
        assert made.run_all_workers_multiple_data("add", [1, 2, 3]) == [11, 12, 13]
        assert made.run_all_workers_single_data("count", 2) == [[10, 11]] * 3
        pids = made.run_all_workers_single_data("pid")
        assert [made.run_single_worker_single_data("pid") for _ in range(4)] == [*pids, pids[0]]
        with pytest.raises(ValueError, match="sharding_annotations"):
            made.run_all_workers_sharded_data("add", value=[1])
        with pytest.raises(
            WorkerFailureError, match=r"(?s)rank 2 \(class-1-1, node .*, pid \d+\): .*at the end"
        ) as caught:
            made.run_all_workers_multiple_data("count", [1, 1, 1], fail=[False, False, True])
        assert caught.value.failed_workers == [2]
        assert caught.value.results == {0: [10], 1: [10]}
        assert not caught.value.restartable
        usage = made.get_resource_usage(DEADLINE_S)
        assert sorted(usage) == [0, 1, 2]
        assert all(used.rss_bytes > 0 for used in usage.values())
        with pytest.raises(WorkerFailureError, match="MemoryError"):
            made.run_single_worker_single_data("allocate", 0, 4 << 30)
        with pytest.raises(ResourceInsufficientError, match="room for another group"):
            RayWorkerGroup(cluster, Worker, name_prefix="third")


def test_what_a_worker_is_told_last_holds(
    cluster: RayVirtualCluster, group: RayWorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decorator, below the driver's environment, below the group's, below what ``configure_worker`` says."""
    pytest.importorskip("ray")
    for name in ("B", "C", "D"):
        monkeypatch.setenv(f"GLD_TEST_{name}", "driver")
    env_vars = {"GLD_TEST_C": "group", "GLD_TEST_D": "group"}
    builder = RayWorkerBuilder("tests.support.decorated_worker.Decorated", 1, path="builder")
    with RayWorkerGroup(
        cluster, builder, name_prefix="told", bundle_indices_list=[(1, [1])], env_vars=env_vars
    ) as made:
        names = ["GLD_TEST_A", "GLD_TEST_B", "GLD_TEST_C", "GLD_TEST_D", "RANK", "WORLD_SIZE"]
        [told] = get(made, [made.workers[0].environ.remote(*names)])
        assert told == ["decorator", "driver", "group", "configured", "(1, [1]) 0", "1"]
        assert get(made, made.run_all_workers_single_data("said")) == ["configured"]


def test_workers_under_an_interpreter_of_their_own(
    cluster: RayVirtualCluster, group: RayWorkerGroup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nGLD_TEST_PYTHON=own exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setitem(ACTOR_ENVIRONMENT_REGISTRY, NAME, str(python))
    with RayWorkerGroup(cluster, NAME, [1, 0], "interpreter", call_timeout_s=DEADLINE_S) as made:
        assert get(made, [made.workers[0].environ.remote("GLD_TEST_PYTHON")]) == [["own"]]


def test_workers_in_an_environment_made_for_them(
    cluster: RayVirtualCluster, group: RayWorkerGroup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By something that has uv's commands, and gives the environment what the driver has."""
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    packages = "lib/python*/site-packages"
    uv.write_text(
        f'#!/bin/sh\nfor target; do :; done\n[ "$1" = run ] && exit 0\n'
        f'{sys.executable} -m venv --without-pip "$target" && cd "$target"/{packages} && '
        f"echo {sysconfig.get_path('purelib')} > driver.pth\n"
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GLD_VENV_DIR", str(tmp_path / "venvs"))
    monkeypatch.setitem(ACTOR_ENVIRONMENT_REGISTRY, NAME, "uv run --locked")
    with RayWorkerGroup(cluster, NAME, [1, 0], "environment", call_timeout_s=DEADLINE_S) as made:
        [[told, *ran]] = get(made, [made.workers[0].environ.remote("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")])
        [prefix] = get(made, [made.workers[0].prefix.remote()])
        assert told == ran[0] == prefix == str(tmp_path / "venvs" / NAME / "current")


def test_futures_of_a_group_of_a_class(cluster: RayVirtualCluster, group: RayWorkerGroup, tmp_path: Path) -> None:
    layout = NamedSharding([1, 0], ["dp"])
    made = RayWorkerGroup(
        cluster,
        NAME,
        1,
        "async",
        sharding_annotations=layout,
        worker_kwargs={"path": str(tmp_path)},
        async_communication=True,
        call_timeout_s=0.2,
        enable_load_balancing=True,
        load_balancing_strategy="locality",
        local_workers=lambda data: [data["value"]],
    )
    refs = made.run_all_workers_single_data("add", 1)
    assert [asyncio.run(_wait(ref)) for ref in refs] == [1, 1]
    future = made.run_all_workers_sharded_data("add", [1, 2], in_sharded_axes=["dp"])
    assert future.get_results(made) == [2, 1]
    pids = get(made, made.run_all_workers_single_data("own_pid", 0))
    for rank in (1, 0, 1):
        assert get(made, [made.run_single_worker_single_data("own_pid", None, rank)]) == [pids[rank]]
    os.mkfifo(tmp_path / "pipe")
    stuck = made.run_all_workers_sharded_data("wait", replicate_on_axes=["dp"])
    with pytest.raises(DeadlineExceededError):
        made.get_all_worker_results(stuck)
    # A worker that is busy for ever fails the cleanup, not the shutdown.
    assert made.shutdown("cleanup", timeout=0.1) is False
    assert (made.workers, made.worker_metadata, made.shutdown()) == ([], [], True)
    with pytest.raises(InvalidArgumentError, match="shut down"):
        made.run_all_workers_single_data("pid")
    # Names are free again at once.
    again = RayWorkerGroup(cluster, NAME, 1, "async", worker_kwargs={"path": str(tmp_path)})
    assert again.shutdown("cleanup", timeout=DEADLINE_S) is True
    assert {path.name for path in tmp_path.glob("cleaned-*")} == {"cleaned-0", "cleaned-1"}


def test_a_group_that_cannot_start_leaves_nothing(cluster: RayVirtualCluster, group: RayWorkerGroup) -> None:
    with pytest.raises(WorkerFailureError, match=r"(?s)__init__ failed on .*missing"):
        RayWorkerGroup(cluster, Broken, name_prefix="broken", worker_args=[])
    with pytest.raises(WorkerNameTakenError, match="grid-0-0"):
        RayWorkerGroup(cluster, Worker, name_prefix="grid")
    with RayWorkerGroup(cluster, Worker, [1, 0], name_prefix="broken") as made:
        assert made.world_size == 1


def test_a_worker_of_a_builder_alone(cluster: RayVirtualCluster) -> None:
    builder = RayWorkerBuilder(NAME, 7)
    bundles = cluster.get_placement_groups()[0]
    ref, _ = builder.create_worker_async(bundles, 1, 0.0, runtime_env={"env_vars": {"GLD_TEST": "alone"}}, name="alone")
    handle = ref.future().result(DEADLINE_S)
    backend = cluster.backend
    assert backend.get([handle.add.remote(1), handle.environ.remote("GLD_TEST")], DEADLINE_S) == [8, ["alone"]]
    again = builder(bundles, 0, 0.0, name="again")
    assert isinstance(again, GroupWorkerHandle)
    assert backend.get([again.add.remote(2)], DEADLINE_S) == [9]
    backend.kill(again.actor)
    with pytest.raises(InvalidArgumentError, match="NoClass"):
        RayWorkerBuilder("tests.support.cluster_workers.NoClass")(bundles, 0, 0.0)

"""States of workers with a clock that the test moves; choosing workers; merging options."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from graphlearn_dist.cluster.actors.base import RunningCall
from graphlearn_dist.cluster.actors.choose import choose_backend
from graphlearn_dist.cluster.groups.group_settings import GroupSettings
from graphlearn_dist.cluster.groups.health import Health, WorkerState
from graphlearn_dist.cluster.groups.worker_builder import ConfigurationRequest, describe_class, recursive_merge_options
from graphlearn_dist.cluster.machines.virtual_cluster import RayVirtualCluster
from graphlearn_dist.errors import InvalidArgumentError, WorkerFailureError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_workers_life() -> None:
    clock = Clock()
    health = Health(1, clock)
    assert health.state is WorkerState.STARTING
    assert not health.check_silence(0.0)
    health.answered()
    clock.now = 5.0
    assert health.heartbeat_age_s == 5.0
    assert not health.check_silence(6.0)
    assert health.check_silence(4.0)
    assert health.state is WorkerState.SUSPECT
    health.answered((RunningCall("short", 1.0, 1.0), RunningCall("long", 2.0, 0.5)))
    assert health.state is WorkerState.READY
    assert health.call == RunningCall("long", 2.0, 0.5)
    health.died("killed")
    assert (health.state, health.last_error, health.call) == (WorkerState.DEAD, "killed", None)
    health.answered()
    assert health.state is WorkerState.DEAD
    health.restarting()
    assert (health.state, health.restarts) == (WorkerState.RESTARTING, 1)
    health.answered()
    health.died("again")
    assert health.state is WorkerState.RETIRED
    health.answered()
    assert health.state is WorkerState.RETIRED


def test_restarts_are_those_of_the_last_hour() -> None:
    """As those of servers and sampling workers: what dies now and then lives on, what dies always is given up."""
    clock = Clock()
    health = Health(2, clock)
    for hour in range(5):
        clock.now = hour * 1801.0
        health.died("now and then")
        assert health.state is WorkerState.DEAD
        health.restarting()
    assert health.restarts == 5
    clock.now += 1.0
    health.died("too soon")
    assert (health.state, health.may_restart) == (WorkerState.RETIRED, False)
    clock.now += 3600.0
    assert health.may_restart  # by hand
    never = Health(0, clock)
    never.died("once")
    assert never.state is WorkerState.RETIRED


def test_merging_options_changes_neither() -> None:
    default = {"num_cpus": 1, "runtime_env": {"env_vars": {"A": "1"}, "pip": ["x"], "_nsight": "d"}}
    extra = {"runtime_env": {"env_vars": {"B": "2"}, "pip": ["y"]}, "num_gpus": 2}
    merged = recursive_merge_options(default, extra)
    assert merged == {
        "num_cpus": 1,
        "num_gpus": 2,
        "runtime_env": {"env_vars": {"A": "1", "B": "2"}, "pip": ["y"], "nsight": "d"},
    }
    merged["runtime_env"]["env_vars"]["A"] = "9"
    assert default["runtime_env"]["env_vars"] == {"A": "1"}  # type: ignore[index]
    assert recursive_merge_options({"runtime_env": {"_nsight": 1, "nsight": 2}}, {}) == {"runtime_env": {"nsight": 2}}


class OldStyle:
    @staticmethod
    def configure_worker(num_gpus: float, bundle_indices: Any) -> Any:
        return {"num_gpus": num_gpus * 2}, {"A": 1}, {"seed": 3}


class NewStyle:
    @classmethod
    def configure_worker(cls, num_gpus: float, bundle_indices: Any, num_gpus_per_node: int) -> Any:
        return None, {"B": bundle_indices, "G": num_gpus_per_node}, None, {"working_dir": "w"}


class WrongStyle:
    @staticmethod
    def configure_worker() -> Any:
        return {}


def test_configure_worker_in_both_styles() -> None:
    requests = [ConfigurationRequest(0.5, (1, [0, 1])), ConfigurationRequest(0.5, None)]
    old = describe_class(OldStyle, requests, 8).configurations
    assert [(c.num_gpus, c.env, c.init_kwargs, c.runtime_env) for c in old] == [(1.0, {"A": "1"}, {"seed": 3}, {})] * 2
    new = describe_class(NewStyle, requests, 8).configurations
    assert new[0].env == {"B": "(1, [0, 1])", "G": "8"}
    assert (new[1].num_gpus, new[1].runtime_env) == (None, {"working_dir": "w"})
    with pytest.raises(InvalidArgumentError, match="configure_worker"):
        describe_class(WrongStyle, requests, 8)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_restarts": -1}, "max_restarts"),
        ({"stuck_timeout_s": 0}, "stuck_timeout_s"),
        ({"load_balancing_strategy": "clever"}, "load_balancing_strategy"),
        ({"gradient_compression": "zip"}, "gradient_compression"),
    ],
)
def test_bad_settings(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        GroupSettings(**arguments)
    assert GroupSettings(memory_limit="1GB").memory_limit_bytes == 1 << 30


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"communication_backend": "mpi"}, "communication_backend"),
        ({"communication_backend": "nccl", "use_gpus": False}, "gloo for workers without GPUs"),
        ({"port_range_low": 10}, "port_range_low"),
        ({"port_range_low": 20, "port_range_high": 10}, "port_range_low"),
        ({"backend": "mpi"}, "backend: expected one of"),
    ],
)
def test_bad_clusters(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        RayVirtualCluster([1], **{"backend": "local", **arguments})


def test_failures_name_their_workers_and_travel() -> None:
    import pickle

    error = WorkerFailureError("train", {2: ValueError("bad"), 0: OSError("gone")}, {1: 5}, True, {2: "w2", 0: "w0"})
    same = pickle.loads(pickle.dumps(error))
    assert str(same) == "train failed on 2 worker(s)\nrank 0 (w0): OSError: gone\nrank 2 (w2): ValueError: bad"
    assert (same.failed_workers, same.results, same.restartable, same.method) == ([0, 2], {1: 5}, True, "train")


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"graphlearn_dist\[ray\]"):
        choose_backend("ray")


def test_ray_is_imported_only_when_asked_for() -> None:
    code = (
        "import sys; import graphlearn_dist.distributed as d; assert 'graphlearn_dist.cluster' not in sys.modules; "
        "from graphlearn_dist.distributed import BatchedDataDict, RayVirtualCluster, RayWorkerGroup; "
        "from graphlearn_dist import cluster; assert cluster.RayWorkerGroup is RayWorkerGroup; "
        "assert all(getattr(d, name) is not None for name in d.__all__) and 'RayWorkerBuilder' in dir(d); "
        "import sys; from graphlearn_dist.distributed import worker_groups, virtual_cluster; "
        "import graphlearn_dist.cluster as c; [getattr(c, name) for name in c.__all__]; "
        "c.RayVirtualCluster([1], use_gpus=False).shutdown(); sys.exit('ray' in sys.modules)"
    )
    environ = {"PYTHONPATH": ":".join(sys.path), "PATH": ""}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environ)

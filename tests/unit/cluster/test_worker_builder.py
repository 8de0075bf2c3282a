"""What a worker's process is started with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from graphlearn_dist.cluster.groups.worker_builder import (
    ClassDescription,
    RayWorkerBuilder,
    WorkerConfiguration,
    get_nsight_config_if_pattern_matches,
    make_spec,
)
from graphlearn_dist.cluster.machines.ray_actor_environment_registry import (
    ACTOR_ENVIRONMENT_REGISTRY,
    get_actor_python_env,
    make_actor_runtime_env,
)
from graphlearn_dist.cluster.machines.virtual_cluster import PY_EXECUTABLES, RayVirtualCluster
from graphlearn_dist.config import virtual_cluster_max_retries

DECORATOR = {
    "num_cpus": 1,
    "num_gpus": 4,
    "scheduling_strategy": "SPREAD",
    "runtime_env": {"env_vars": {"A": "decorator", "B": "decorator", "C": "decorator"}, "pip": ["x"]},
}


def test_precedence() -> None:
    builder = RayWorkerBuilder("package.Class", 1, seed=2, path="builder")
    configured = WorkerConfiguration(0.25, {"C": "configured"}, {"path": "configured"}, {"working_dir": "w"})
    options = {"num_cpus": 2, "runtime_env": {"env_vars": {"B": "not these"}}}
    spec = make_spec(
        builder,
        ClassDescription(DECORATOR, [configured]),
        configured,
        num_gpus=0.5,
        env={"B": "group", "C": "group"},
        options=options,
    )
    assert (spec.target, spec.args, spec.kwargs) == ("package.Class", (1,), {"seed": 2, "path": "configured"})
    assert spec.env == {"A": "decorator", "B": "group", "C": "configured"}
    assert spec.num_gpus == 0.25
    assert spec.options == {"num_cpus": 2, "runtime_env": {"pip": ["x"], "working_dir": "w"}}


def test_gpus_are_the_groups_unless_the_class_says_otherwise() -> None:
    silent = WorkerConfiguration()
    found = ClassDescription(DECORATOR, [silent])
    assert make_spec(RayWorkerBuilder("p.C"), found, silent, num_gpus=0.5, env={}, options={}).num_gpus == 0.5


def test_interpreters_of_classes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ACTOR_ENVIRONMENT_REGISTRY\['p.C'\] to an interpreter"):
        get_actor_python_env("p.C")
    assert make_actor_runtime_env("p.C") == {}
    monkeypatch.setitem(ACTOR_ENVIRONMENT_REGISTRY, "p.C", str(tmp_path / "bin/python"))
    assert get_actor_python_env("p.C") == str(tmp_path / "bin/python")
    assert make_actor_runtime_env("p.C") == {"py_executable": str(tmp_path / "bin/python"), "env_vars": {}}
    (tmp_path / "pyvenv.cfg").touch()
    variables = {"VIRTUAL_ENV": str(tmp_path), "UV_PROJECT_ENVIRONMENT": str(tmp_path)}
    assert make_actor_runtime_env("p.C")["env_vars"] == variables
    assert sys.executable == PY_EXECUTABLES.SYSTEM


def test_profiled_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLD_NSYS_WORKER_PATTERNS", "NRL_NSYS_WORKER_PATTERNS"):
        monkeypatch.delenv(name, raising=False)
        assert get_nsight_config_if_pattern_matches("sampler-0") == {}
        monkeypatch.setenv(name, "trainer, sampler-*,")
        assert get_nsight_config_if_pattern_matches("server") == {}
        found = get_nsight_config_if_pattern_matches("sampler-0")
        assert list(found) == ["nsight"]
        assert found["nsight"]["o"] == "'sampler-0_%p'"
        # Ray itself stores it under another name in a decorated class.
        silent = WorkerConfiguration()
        stored = ClassDescription({"runtime_env": {"_nsight": found["nsight"]}}, [silent])
        spec = make_spec(RayWorkerBuilder("p.C"), stored, silent, num_gpus=0, env={}, options={})
        assert spec.options["runtime_env"] == found
        monkeypatch.delenv(name)


def test_retries_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = "GLD_VIRTUAL_CLUSTER_MAX_RETRIES", "NRL_VIRTUAL_CLUSTER_MAX_RETRIES"
    for name in (ours, theirs):
        monkeypatch.delenv(name, raising=False)
    assert virtual_cluster_max_retries() == 6
    monkeypatch.setenv(theirs, "3")
    assert virtual_cluster_max_retries() == 3
    monkeypatch.setenv(ours, "2")
    assert virtual_cluster_max_retries() == 2
    for wrong, said in (("two", "expected an integer, got 'two'"), ("0", "expected at least 1, got 0")):
        monkeypatch.setenv(ours, wrong)
        with pytest.raises(ValueError, match=f"{ours}: {said}"):
            RayVirtualCluster([1], use_gpus=False, backend="local")
        RayVirtualCluster([1], use_gpus=False, backend="local", max_retries=1)

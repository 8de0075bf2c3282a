"""A driver with a Ray of its own, in a process of its own."""

from __future__ import annotations

import os

from graphlearn_dist.cluster import RayVirtualCluster, RayWorkerGroup, init_ray
from tests.support.cluster_workers import Worker
from tests.support.jobs import children

DEADLINE_S = 120.0  # only ever reached by a hang


def drive(log_dir: str) -> list[int]:
    """A driver; says which processes of Ray it and its worker had."""
    import ray

    init_ray(log_dir, address="local", num_cpus=2, object_store_memory=80 << 20, log_to_driver=False)
    node = ray.get_runtime_context().get_node_id()
    init_ray(os.path.join(log_dir, "other"), address="127.0.0.1:1")  # is connected: does nothing
    assert ray.get_runtime_context().get_node_id() == node
    with RayVirtualCluster([1], use_gpus=False, backend="auto", name="own") as cluster:
        assert cluster.backend.name == "ray"
        with RayWorkerGroup(cluster, Worker, name_prefix="own", call_timeout_s=DEADLINE_S) as group:
            [worker] = group.run_all_workers_single_data("pid")
            started = descendants(os.getpid())
            assert worker in started
    ray.shutdown()
    return started


def descendants(pid: int) -> list[int]:
    own = children(pid)
    return own + [below for child in own for below in descendants(child)]

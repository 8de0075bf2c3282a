"""Starting and supervising the processes of a job, and groups of workers on local processes or Ray.

What needs torch is imported when it is first used: the launcher and a worker's process start without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .jobs.backend import Backend, Listener, LocalBackend, RunningProcess
from .jobs.launcher import launch
from .jobs.plan import Host, LaunchPlan, Master, ProcessSpec, plan_processes, read_hosts
from .jobs.ssh_backend import SshBackend

if TYPE_CHECKING:
    from .actors.shell import heartbeat, idempotent
    from .data.batched_data_dict import BatchedDataDict, SlicedDataDict
    from .data.named_sharding import NamedSharding
    from .groups.health import StuckWorker, WorkerState, WorkerStatus
    from .groups.worker_groups import MultiWorkerFuture, RayWorkerBuilder, RayWorkerGroup
    from .machines.virtual_cluster import RayVirtualCluster, VirtualCluster, init_ray
    from .training.collectives import init_process_group, wrap_ddp
    from .training.compression import compress_gradients

_LATE = {
    "BatchedDataDict": "data.batched_data_dict",
    "MultiWorkerFuture": "groups.worker_groups",
    "NamedSharding": "data.named_sharding",
    "RayVirtualCluster": "machines.virtual_cluster",
    "RayWorkerBuilder": "groups.worker_groups",
    "RayWorkerGroup": "groups.worker_groups",
    "SlicedDataDict": "data.batched_data_dict",
    "StuckWorker": "groups.health",
    "VirtualCluster": "machines.virtual_cluster",
    "WorkerState": "groups.health",
    "WorkerStatus": "groups.health",
    "compress_gradients": "training.compression",
    "heartbeat": "actors.shell",
    "idempotent": "actors.shell",
    "init_process_group": "training.collectives",
    "init_ray": "machines.virtual_cluster",
    "wrap_ddp": "training.collectives",
}

__all__ = [
    "Backend",
    "BatchedDataDict",
    "Host",
    "LaunchPlan",
    "Listener",
    "LocalBackend",
    "Master",
    "MultiWorkerFuture",
    "NamedSharding",
    "ProcessSpec",
    "RayVirtualCluster",
    "RayWorkerBuilder",
    "RayWorkerGroup",
    "RunningProcess",
    "SlicedDataDict",
    "SshBackend",
    "StuckWorker",
    "VirtualCluster",
    "WorkerState",
    "WorkerStatus",
    "compress_gradients",
    "heartbeat",
    "idempotent",
    "init_process_group",
    "init_ray",
    "launch",
    "plan_processes",
    "read_hosts",
    "wrap_ddp",
]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(f".{_LATE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

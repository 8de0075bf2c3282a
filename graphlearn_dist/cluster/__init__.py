"""Starting and supervising the processes of a job, and groups of workers on local processes or Ray.

What needs torch is imported when it is first used: the launcher and a worker's process start without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .backend import Backend, Listener, LocalBackend, RunningProcess
from .launcher import launch
from .plan import Host, LaunchPlan, Master, ProcessSpec, plan_processes, read_hosts
from .ssh_backend import SshBackend

if TYPE_CHECKING:
    from .actors.shell import heartbeat, idempotent
    from .batched_data_dict import BatchedDataDict, SlicedDataDict
    from .collectives import init_process_group, wrap_ddp
    from .compression import compress_gradients
    from .health import StuckWorker, WorkerState, WorkerStatus
    from .named_sharding import NamedSharding
    from .virtual_cluster import RayVirtualCluster, VirtualCluster, init_ray
    from .worker_groups import MultiWorkerFuture, RayWorkerBuilder, RayWorkerGroup

_LATE = {
    "BatchedDataDict": "batched_data_dict",
    "MultiWorkerFuture": "worker_groups",
    "NamedSharding": "named_sharding",
    "RayVirtualCluster": "virtual_cluster",
    "RayWorkerBuilder": "worker_groups",
    "RayWorkerGroup": "worker_groups",
    "SlicedDataDict": "batched_data_dict",
    "StuckWorker": "health",
    "VirtualCluster": "virtual_cluster",
    "WorkerState": "health",
    "WorkerStatus": "health",
    "compress_gradients": "compression",
    "heartbeat": "actors.shell",
    "idempotent": "actors.shell",
    "init_process_group": "collectives",
    "init_ray": "virtual_cluster",
    "wrap_ddp": "collectives",
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

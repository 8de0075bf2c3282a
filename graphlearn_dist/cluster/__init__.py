"""Starting and supervising the processes of a job, and groups of workers on local processes or Ray.

What needs torch is imported when it is first used: the launcher and a worker's process start without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .backend import Backend, Listener, LocalBackend, RunningProcess, SshBackend
from .launcher import launch
from .plan import Host, LaunchPlan, Master, ProcessSpec, plan_processes, read_hosts

if TYPE_CHECKING:
    from .batched_data_dict import BatchedDataDict, SlicedDataDict
    from .named_sharding import NamedSharding

_LATE = {
    "BatchedDataDict": "batched_data_dict",
    "NamedSharding": "named_sharding",
    "SlicedDataDict": "batched_data_dict",
}

__all__ = [
    "Backend",
    "BatchedDataDict",
    "Host",
    "LaunchPlan",
    "Listener",
    "LocalBackend",
    "Master",
    "NamedSharding",
    "ProcessSpec",
    "RunningProcess",
    "SlicedDataDict",
    "SshBackend",
    "launch",
    "plan_processes",
    "read_hosts",
]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(f".{_LATE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

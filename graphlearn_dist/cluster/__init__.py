"""Starting and supervising the processes of a job."""

from .backend import Backend, Listener, LocalBackend, RunningProcess, SshBackend
from .launcher import launch
from .plan import Host, LaunchPlan, Master, ProcessSpec, plan_processes, read_hosts

__all__ = [
    "Backend",
    "Host",
    "LaunchPlan",
    "Listener",
    "LocalBackend",
    "Master",
    "ProcessSpec",
    "RunningProcess",
    "SshBackend",
    "launch",
    "plan_processes",
    "read_hosts",
]

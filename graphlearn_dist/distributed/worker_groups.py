"""The names of ``cluster.groups.worker_groups``, at the place where the cluster layer's documents have them."""

from ..cluster.groups.worker_groups import (
    MultiWorkerFuture,
    RayWorkerBuilder,
    RayWorkerGroup,
    WorkerFailureError,
    get_nsight_config_if_pattern_matches,
    recursive_merge_options,
)

__all__ = [
    "MultiWorkerFuture",
    "RayWorkerBuilder",
    "RayWorkerGroup",
    "WorkerFailureError",
    "get_nsight_config_if_pattern_matches",
    "recursive_merge_options",
]

"""The names of ``cluster.worker_groups``, at the place where the cluster layer's documents have them."""

from ..cluster.worker_groups import (
    MultiWorkerFuture,
    RayWorkerBuilder,
    RayWorkerGroup,
    WorkerFailureError,
    recursive_merge_options,
)

__all__ = ["MultiWorkerFuture", "RayWorkerBuilder", "RayWorkerGroup", "WorkerFailureError", "recursive_merge_options"]

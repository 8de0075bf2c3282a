"""The names of ``cluster.machines.virtual_cluster``, at the place where the cluster layer's documents have them."""

from ..cluster.machines.virtual_cluster import (
    PY_EXECUTABLES,
    RayVirtualCluster,
    ResourceInsufficientError,
    VirtualCluster,
    init_ray,
)

__all__ = ["PY_EXECUTABLES", "RayVirtualCluster", "ResourceInsufficientError", "VirtualCluster", "init_ray"]

"""The names of ``cluster.virtual_cluster``, at the place where the cluster layer's documents have them."""

from ..cluster.virtual_cluster import RayVirtualCluster, ResourceInsufficientError, VirtualCluster, init_ray

__all__ = ["RayVirtualCluster", "ResourceInsufficientError", "VirtualCluster", "init_ray"]

"""Sampling over several processes: servers, clients, and the loaders between them.

The names of the cluster layer that its documents have here are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .dist_client import async_request_server, init_client, rendezvous_store, request_server, shutdown_client
from .dist_context import DistContext, DistRole, assign_server_by_order, get_context, init_worker_group
from .dist_dataset import DistDataset
from .dist_embedding import DistEmbedding, SparseAdagrad, SparseAdam, SparseSGD
from .dist_feature import DistFeature, PartialFeature
from .dist_graph import DistGraph
from .dist_hgt_loader import DistHGTLoader
from .dist_link_neighbor_loader import DistLinkNeighborLoader
from .dist_loader import DistLoader
from .dist_neighbor_loader import DistNeighborLoader
from .dist_neighbor_sampler import DistNeighborSampler
from .dist_options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from .dist_random_partitioner import DistRandomPartitioner
from .dist_sampling_producer import DistCollocatedSamplingProducer, DistMpSamplingProducer, MpCommand
from .dist_server import (
    DistServer,
    get_server,
    init_server,
    shutdown_server,
    wait_and_shutdown_server,
)
from .dist_subgraph_loader import DistSubGraphLoader
from .event_loop import ConcurrentEventLoop, wrap_torch_future
from .importance import importance_neighbors
from .pagerank import personalized_pagerank
from .rpc import (
    RpcCalleeBase,
    RpcDataPartitionRouter,
    all_gather,
    barrier,
    get_rpc_master_addr,
    get_rpc_master_port,
    global_all_gather,
    global_barrier,
    init_rpc,
    register_function,
    rpc_global_request,
    rpc_global_request_async,
    rpc_global_request_by_rank,
    rpc_is_initialized,
    rpc_register,
    rpc_request,
    rpc_request_async,
    rpc_sync_data_partitions,
    shutdown_rpc,
)
from .sampling.served_dataset import ServedDataset
from .walks import random_walk

if TYPE_CHECKING:
    from .batched_data_dict import BatchedDataDict, SlicedDataDict
    from .named_sharding import NamedSharding
    from .virtual_cluster import RayVirtualCluster, VirtualCluster
    from .worker_groups import MultiWorkerFuture, RayWorkerBuilder, RayWorkerGroup

_OF_CLUSTER = frozenset(
    (
        "BatchedDataDict",
        "MultiWorkerFuture",
        "NamedSharding",
        "RayVirtualCluster",
        "RayWorkerBuilder",
        "RayWorkerGroup",
        "SlicedDataDict",
        "VirtualCluster",
    )
)

__all__ = [
    "BatchedDataDict",
    "CollocatedDistSamplingWorkerOptions",
    "ConcurrentEventLoop",
    "DistCollocatedSamplingProducer",
    "DistContext",
    "DistDataset",
    "DistEmbedding",
    "DistFeature",
    "DistGraph",
    "DistHGTLoader",
    "DistLinkNeighborLoader",
    "DistLoader",
    "DistMpSamplingProducer",
    "DistNeighborLoader",
    "DistNeighborSampler",
    "DistRandomPartitioner",
    "DistRole",
    "DistServer",
    "DistSubGraphLoader",
    "MpCommand",
    "MpDistSamplingWorkerOptions",
    "MultiWorkerFuture",
    "NamedSharding",
    "PartialFeature",
    "RayVirtualCluster",
    "RayWorkerBuilder",
    "RayWorkerGroup",
    "RemoteDistSamplingWorkerOptions",
    "RpcCalleeBase",
    "RpcDataPartitionRouter",
    "ServedDataset",
    "SlicedDataDict",
    "SparseAdagrad",
    "SparseAdam",
    "SparseSGD",
    "VirtualCluster",
    "all_gather",
    "assign_server_by_order",
    "async_request_server",
    "barrier",
    "get_context",
    "get_rpc_master_addr",
    "get_rpc_master_port",
    "get_server",
    "global_all_gather",
    "global_barrier",
    "importance_neighbors",
    "init_client",
    "init_rpc",
    "init_server",
    "init_worker_group",
    "personalized_pagerank",
    "random_walk",
    "register_function",
    "rendezvous_store",
    "request_server",
    "rpc_global_request",
    "rpc_global_request_async",
    "rpc_global_request_by_rank",
    "rpc_is_initialized",
    "rpc_register",
    "rpc_request",
    "rpc_request_async",
    "rpc_sync_data_partitions",
    "shutdown_client",
    "shutdown_rpc",
    "shutdown_server",
    "wait_and_shutdown_server",
    "wrap_torch_future",
]


def __getattr__(name: str) -> Any:
    if name in _OF_CLUSTER:
        from . import batched_data_dict, named_sharding, virtual_cluster, worker_groups

        modules = (batched_data_dict, named_sharding, virtual_cluster, worker_groups)
        return next(getattr(module, name) for module in modules if name in module.__all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_CLUSTER})

"""The names of ``graphlearn_torch.distributed``."""

from __future__ import annotations

from . import (
    dist_client,
    dist_context,
    dist_dataset,
    dist_feature,
    dist_graph,
    dist_link_neighbor_loader,
    dist_loader,
    dist_neighbor_loader,
    dist_neighbor_sampler,
    dist_options,
    dist_random_partitioner,
    dist_sampling_producer,
    dist_server,
    dist_subgraph_loader,
    dist_table_dataset,
    event_loop,
    rpc,
)
from .dist_client import async_request_server, init_client, request_server, shutdown_client
from .dist_context import DistContext, DistRole, get_context, init_worker_group
from .dist_dataset import DistDataset
from .dist_feature import DistFeature, PartialFeature
from .dist_graph import DistGraph
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
from .dist_sampling_producer import DistCollocatedSamplingProducer, DistMpSamplingProducer
from .dist_server import DistServer, get_server, init_server, wait_and_shutdown_server
from .dist_subgraph_loader import DistSubGraphLoader
from .dist_table_dataset import DistTableDataset, DistTableRandomPartitioner
from .event_loop import ConcurrentEventLoop
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
    rpc_global_request,
    rpc_global_request_async,
    rpc_is_initialized,
    rpc_register,
    rpc_request,
    rpc_request_async,
    rpc_sync_data_partitions,
    shutdown_rpc,
)

__all__ = [
    "CollocatedDistSamplingWorkerOptions",
    "ConcurrentEventLoop",
    "DistCollocatedSamplingProducer",
    "DistContext",
    "DistDataset",
    "DistFeature",
    "DistGraph",
    "DistLinkNeighborLoader",
    "DistLoader",
    "DistMpSamplingProducer",
    "DistNeighborLoader",
    "DistNeighborSampler",
    "DistRandomPartitioner",
    "DistRole",
    "DistServer",
    "DistSubGraphLoader",
    "DistTableDataset",
    "DistTableRandomPartitioner",
    "MpDistSamplingWorkerOptions",
    "PartialFeature",
    "RemoteDistSamplingWorkerOptions",
    "RpcCalleeBase",
    "RpcDataPartitionRouter",
    "all_gather",
    "async_request_server",
    "barrier",
    "dist_client",
    "dist_context",
    "dist_dataset",
    "dist_feature",
    "dist_graph",
    "dist_link_neighbor_loader",
    "dist_loader",
    "dist_neighbor_loader",
    "dist_neighbor_sampler",
    "dist_options",
    "dist_random_partitioner",
    "dist_sampling_producer",
    "dist_server",
    "dist_subgraph_loader",
    "dist_table_dataset",
    "event_loop",
    "get_context",
    "get_rpc_master_addr",
    "get_rpc_master_port",
    "get_server",
    "global_all_gather",
    "global_barrier",
    "init_client",
    "init_rpc",
    "init_server",
    "init_worker_group",
    "request_server",
    "rpc",
    "rpc_global_request",
    "rpc_global_request_async",
    "rpc_is_initialized",
    "rpc_register",
    "rpc_request",
    "rpc_request_async",
    "rpc_sync_data_partitions",
    "shutdown_client",
    "shutdown_rpc",
    "wait_and_shutdown_server",
]

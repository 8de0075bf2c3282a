"""The names of ``graphlearn_torch.distributed.rpc``."""

from __future__ import annotations

from ...distributed.rpc import (
    RpcCalleeBase,
    all_gather,
    barrier,
    get_rpc_current_group_worker_names,
    get_rpc_master_addr,
    get_rpc_master_port,
    get_rpc_worker_names,
    global_all_gather,
    global_barrier,
    init_rpc,
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
from ...distributed.session.partition_router import RpcDataPartitionRouter

__all__ = [
    "RpcCalleeBase",
    "RpcDataPartitionRouter",
    "all_gather",
    "barrier",
    "get_rpc_current_group_worker_names",
    "get_rpc_master_addr",
    "get_rpc_master_port",
    "get_rpc_worker_names",
    "global_all_gather",
    "global_barrier",
    "init_rpc",
    "rpc_global_request",
    "rpc_global_request_async",
    "rpc_global_request_by_rank",
    "rpc_is_initialized",
    "rpc_register",
    "rpc_request",
    "rpc_request_async",
    "rpc_sync_data_partitions",
    "shutdown_rpc",
]

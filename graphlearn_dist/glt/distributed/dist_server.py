"""Servers as ``graphlearn_torch.distributed.dist_server`` has them."""

from __future__ import annotations

from typing import Any

import torch

from ...distributed import dist_server
from ...distributed.dist_dataset import DistDataset
from ...distributed.dist_server import (
    SERVER_EXIT_STATUS_CHECK_INTERVAL,
    DistServer,
    get_server,
    wait_and_shutdown_server,
)
from ...distributed.rpc import register_function

__all__ = [
    "SERVER_EXIT_STATUS_CHECK_INTERVAL",
    "DistServer",
    "get_server",
    "init_server",
    "wait_and_shutdown_server",
]

# What clients of GraphLearn-for-PyTorch's examples ask a server for, beside methods of ``DistServer``.
EXPORTED = (torch.cuda.device_count, torch.cuda.is_available)


def init_server(
    num_servers: int,
    server_rank: int,
    dataset: DistDataset,
    master_addr: str,
    master_port: int,
    num_clients: int = 0,
    num_rpc_threads: int = 16,
    request_timeout: int = 180,
    server_group_name: str | None = None,
    is_dynamic: bool = False,
    **others: Any,
) -> None:
    """Makes this process a server: ``graphlearn_dist.distributed.init_server`` in another order of arguments.

    Clients may also ask for ``torch.cuda.device_count`` and ``torch.cuda.is_available``; a program exports further
    functions with ``graphlearn_dist.distributed.register_function``.
    """
    for function in EXPORTED:
        register_function(function)
    dist_server.init_server(
        num_servers=num_servers,
        num_clients=num_clients,
        server_rank=server_rank,
        dataset=dataset,
        master_addr=master_addr,
        master_port=master_port,
        num_rpc_threads=num_rpc_threads,
        request_timeout=request_timeout,
        server_group_name=server_group_name,
        is_dynamic=is_dynamic,
        **others,
    )

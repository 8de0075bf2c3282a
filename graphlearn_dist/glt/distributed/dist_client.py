"""The names of ``graphlearn_torch.distributed.dist_client``."""

from __future__ import annotations

from ...distributed.dist_client import async_request_server, init_client, request_server, shutdown_client

__all__ = [
    "async_request_server",
    "init_client",
    "request_server",
    "shutdown_client",
]

"""Clients as ``graphlearn_torch.distributed.dist_client`` has them."""

from __future__ import annotations

from ...distributed.dist_client import async_request_server, init_client, leave_servers, request_server

__all__ = [
    "async_request_server",
    "init_client",
    "request_server",
    "shutdown_client",
]


def shutdown_client() -> None:
    """Tells the servers that this client is done, and leaves.

    Of a job with ``is_dynamic=True`` servers end when all clients of this one's group are done, and nobody of another
    group is there; no client waits for the others. See ``graphlearn_dist.distributed.shutdown_client`` for the rest.
    """
    leave_servers(ends_servers=True)

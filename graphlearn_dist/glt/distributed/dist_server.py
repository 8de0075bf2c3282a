"""The names of ``graphlearn_torch.distributed.dist_server``."""

from __future__ import annotations

from ...distributed.dist_server import (
    SERVER_EXIT_STATUS_CHECK_INTERVAL,
    DistServer,
    get_server,
    init_server,
    wait_and_shutdown_server,
)

__all__ = [
    "SERVER_EXIT_STATUS_CHECK_INTERVAL",
    "DistServer",
    "get_server",
    "init_server",
    "wait_and_shutdown_server",
]

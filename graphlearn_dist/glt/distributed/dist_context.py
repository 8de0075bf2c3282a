"""The names of ``graphlearn_torch.distributed.dist_context``."""

from __future__ import annotations

from ...distributed.dist_context import (
    DistContext,
    DistRole,
    assign_server_by_order,
    get_clients_to_servers,
    get_context,
    init_worker_group,
)

__all__ = [
    "DistContext",
    "DistRole",
    "assign_server_by_order",
    "get_clients_to_servers",
    "get_context",
    "init_worker_group",
]

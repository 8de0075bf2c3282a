"""Servers as ``graphlearn_torch.distributed.dist_server`` has them."""

from __future__ import annotations

from typing import Any

import torch

from ...data.graph import Graph
from ...distributed import dist_server
from ...distributed.dist_dataset import DistDataset
from ...distributed.dist_server import (
    SERVER_EXIT_STATUS_CHECK_INTERVAL,
    get_server,
    wait_and_shutdown_server,
)
from ...distributed.rpc import register_function
from ...errors import InvalidArgumentError
from ...rpc.calls.remote import remote, remote_name
from ...sampler.inputs import edge_type_index
from ...typing import EdgeType
from ...utils.shown import shown

__all__ = [
    "SERVER_EXIT_STATUS_CHECK_INTERVAL",
    "DistServer",
    "get_server",
    "init_server",
    "wait_and_shutdown_server",
]

# What clients of GraphLearn-for-PyTorch's examples ask a server for, beside methods of ``DistServer``.
EXPORTED = (torch.cuda.device_count, torch.cuda.is_available)


class GraphSizes:
    """What servers of ``glt`` answer otherwise than others, under a name of its own."""

    @remote
    def get_edge_size(self, edge_type: EdgeType | None, layout: str) -> tuple[int, int]:
        """(rows, columns) of this partition's graph: nodes that may have a row, and nodes at the other ends.

        Raises:
            InvalidArgumentError: an unknown edge type, or another layout than ``"coo"``.
        """
        if layout.lower() != "coo":
            raise InvalidArgumentError(f"layout: expected 'coo', got {shown(layout)}")
        dataset = get_server().dataset
        edge_type_index(dataset.schema, edge_type, "edge_type")
        graph: Graph = dataset.graphs()[edge_type]
        return graph.num_row_nodes, graph.col_count


class DistServer(GraphSizes, dist_server.DistServer):  # type: ignore[misc]  # of sizes there is one number there
    """The functions of ``graphlearn_dist.distributed.DistServer``, for ``request_server``.

    ``get_edge_size`` gives (rows, columns), of servers that ``glt.distributed.init_server`` started.
    """


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
    sizes = GraphSizes()
    register_function(GraphSizes.get_edge_size, remote_name(GraphSizes.get_edge_size), target=sizes.get_edge_size)
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

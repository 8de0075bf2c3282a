"""What a server writes of itself: where it serves what, and which clients come and go. Level INFO."""

from __future__ import annotations

import logging

from ...rpc import Endpoint
from ...rpc.peers.identity import Member
from ..dist_dataset import DistDataset
from .memory_budget import ServerMemory

_logger = logging.getLogger(__name__)


def log_members(endpoint: Endpoint) -> None:
    """Writes down who joins the job and who is gone, from now on."""
    endpoint.on_member_joined(lambda member: _logger.info("%s has come", _text(member)))
    endpoint.on_member_left(lambda member: _logger.info("%s has left", _text(member)))
    endpoint.on_member_lost(lambda member, why: _logger.info("%s is lost: %s", _text(member), why))


def log_start(endpoint: Endpoint, num_servers: int, dataset: DistDataset, memory: ServerMemory) -> None:
    """Writes down what a server has, once it serves."""
    address = endpoint.address
    where = f"{address.host}:{address.port}" if address.host else "unix sockets alone"
    edges = sum(graph.edge_count for graph in dataset.graphs().values())
    _logger.info(
        "server %d of %d listens at %s (pid %d) and serves partition %d of %d, %d edges; "
        "%d MiB of memory are for what clients wait for",
        endpoint.peer.rank,
        num_servers,
        where,
        endpoint.peer.pid,
        dataset.partition_idx,
        dataset.num_partitions,
        edges,
        (memory.batches + memory.arena) >> 20,
    )


def _text(member: Member) -> str:
    peer = member.peer
    return f"{peer.role} {peer.rank} (pid {peer.pid} on {peer.host})"

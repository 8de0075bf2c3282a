"""Counters of an endpoint, for metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .peers.links import Links
    from .peers.refusals import Refusals
    from .shm.arena import SendingArena


@dataclass(frozen=True)
class EndpointStats:
    """Counters of the connections that are open now; ``refused_connections`` counts those that it turned away since it
    opened: malformed bytes, a wrong token, another user, no handshake in time, too many at once."""

    connections: int
    unix_connections: int
    requests_sent: int
    requests_served: int
    arena_payloads_sent: int
    arena_payloads_received: int
    lent_payloads_sent: int
    lent_payloads_received: int
    inline_payloads_sent: int
    arena_full: int
    arena_used_bytes: int
    refused_connections: int


async def count_connections(links: Links, arena: SendingArena | None, refusals: Refusals) -> EndpointStats:
    """Adds up the counters of the open ones. On the endpoint's loop."""
    opened = [connection for connection in links.connections if connection.is_open]
    exchanges = [connection.exchange_stats for connection in opened]
    queries = [connection.queries for connection in opened]
    return EndpointStats(
        connections=len(opened),
        unix_connections=sum(connection.kind == "unix" for connection in opened),
        requests_sent=sum(connection.stats.requests_sent for connection in opened) + sum(sent for sent, _ in queries),
        requests_served=sum(connection.stats.requests_served for connection in opened)
        + sum(served for _, served in queries),
        arena_payloads_sent=sum(stats.arena_payloads_sent for stats in exchanges),
        arena_payloads_received=sum(stats.arena_payloads_received for stats in exchanges),
        lent_payloads_sent=sum(stats.lent_payloads_sent for stats in exchanges),
        lent_payloads_received=sum(stats.lent_payloads_received for stats in exchanges),
        inline_payloads_sent=sum(connection.stats.inline_payloads_sent for connection in opened),
        arena_full=sum(stats.arena_full for stats in exchanges),
        arena_used_bytes=0 if arena is None else arena.used_bytes,
        refused_connections=refusals.count,
    )

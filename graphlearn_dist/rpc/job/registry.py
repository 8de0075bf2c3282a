"""The coordinator of a job: who is a member, and where.

It is a handful of ordinary callees of one endpoint. A member's lease is its connection: when that closes, the member
is lost, and every other member is told. Everything here runs on the hosting endpoint's loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import RegistryError
from ...utils.message_types import register_message
from ..calls.callees import current_connection
from ..calls.remote import remote
from ..connection import Connection
from ..peers.identity import Member, boot_id, current_deadline
from ..wire.codec import encode
from .last_known import LastKnown

EVENT_TOPIC = "registry.view"
PROBE_TOPIC = "registry.probe"
ALIVE_TOPIC = "registry.alive"

_ANSWER_S = 1.0  # of the time of who joins: for the answer to reach it

Slot = tuple[str, int]


@register_message(name="rpc.ViewChange")
@dataclass(frozen=True)
class ViewChange:
    """A member ``joined``, ``left``, or was ``lost`` (``kind``), and why."""

    kind: str
    member: Member
    why: str = ""


@dataclass(frozen=True)
class Lease:
    """A live member, the connection its life hangs on, and what wakes who waits for a sign of life or its end."""

    member: Member
    world_size: int | None
    connection: Connection
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def slot(self) -> Slot:
        """Role and rank."""
        return (self.member.role, self.member.rank)


class Registry:
    """The members of a job.

    Args:
        name: the hosting endpoint.
        verdict_s: after which a connection's heartbeat has given up a member that is gone.
    """

    def __init__(self, name: str, verdict_s: float) -> None:
        self.gone: LastKnown[tuple[Member, str]] = LastKnown()  # of places that are free now, and why
        self.on_gone: list[Callable[[Member, str], None]] = []
        self._name = name
        self._verdict_s = verdict_s
        self._leases: dict[Slot, Lease] = {}

    @remote
    async def hello(self) -> str:
        """The name of the endpoint that hosts the registry."""
        return self._name

    @remote
    async def clock(self) -> tuple[str, int]:
        """The host of the registry, and its monotonic clock now, in nanoseconds."""
        return boot_id(), time.perf_counter_ns()

    @remote
    async def members(self) -> list[Member]:
        """Who is in the job now; asking makes nobody a member."""
        return [lease.member for lease in self._leases.values()]

    @remote
    async def join(self, member: Member, world_size: int | None) -> None:
        """Add the calling endpoint. Before the answer, it is sent one ``ViewChange`` for every member there is.

        A member that joins again, since it has lost its connection or did not get the answer in time, keeps its place:
        its lease hangs on the new connection. Who finds its place taken waits until the holder gives a sign of life, or
        its heartbeat says that there is none: a host that vanished closed no connection.

        Raises:
            RegistryError: the member is not the caller, its slot or name is taken, or the world sizes differ.
        """
        connection = current_connection()
        if member.peer != connection.peer:
            raise RegistryError(f"member: {connection.peer} cannot join as {member.peer}")
        await self._wait_for_place(member)
        self._check_world_size(member, world_size)
        lease = Lease(member, world_size, connection)
        for other in self._leases.values():
            _tell(connection, ViewChange("joined", other.member))
        if (before := self._leases.get(lease.slot)) is not None:
            before.changed.set()
        if all(role != member.role for role, _ in self._leases):
            self.gone.drop_role(member.role)  # another run begins, which waits for its own
        self._leases[lease.slot] = lease
        self.gone.drop(*lease.slot)
        self._broadcast(ViewChange("joined", member))

    async def _wait_for_place(self, member: Member) -> None:
        """Returns when nobody else has the member's slot or name; ``RegistryError`` where somebody keeps it."""
        while (lease := self._holder(member)) is not None:
            why = await self._why_kept(lease)
            if why:
                taken = lease.slot == (member.role, member.rank)
                what = f"rank {member.rank} of {member.role}" if taken else f"the name {member.name!r}"
                raise RegistryError(f"{what} is taken: {lease.member.peer} {why}; {member.peer} cannot join")

    def _holder(self, member: Member) -> Lease | None:
        for lease in self._leases.values():
            if lease.member.peer != member.peer and (
                lease.slot == (member.role, member.rank) or lease.member.name == member.name
            ):
                return lease
        return None

    async def _why_kept(self, lease: Lease) -> str:
        """What says that a member lives; nothing where its lease has ended, or hangs on another connection now."""
        deadline = current_deadline()
        left_s = self._verdict_s if deadline is None else deadline - time.monotonic() - _ANSWER_S
        patience_s = max(0.0, min(self._verdict_s, left_s))
        lease.changed.clear()
        lease.connection.send_event(PROBE_TOPIC, encode(None))
        try:
            await asyncio.wait_for(lease.changed.wait(), patience_s)
        except (asyncio.TimeoutError, TimeoutError):
            return f"gave no answer for {patience_s:.1f} s, and is not given up"
        return "is alive" if self._leases.get(lease.slot) is lease else ""

    def on_alive(self, connection: Connection, _: Any) -> None:
        """A member's answer to a probe."""
        for lease in self._leases.values():
            if lease.connection is connection:
                lease.changed.set()

    def _check_world_size(self, member: Member, world_size: int | None) -> None:
        if world_size is None:
            return
        if member.rank >= world_size:
            raise RegistryError(f"{member.peer}: rank {member.rank} is outside of its world size {world_size}")
        for lease in self._leases.values():
            if lease.member.role == member.role and lease.world_size not in (None, world_size):
                raise RegistryError(
                    f"world_size: {member.peer} says {world_size}, {lease.member.peer} says {lease.world_size}"
                )

    @remote
    async def leave(self) -> None:
        """Remove the calling endpoint; nobody counts it as lost."""
        connection = current_connection()
        for lease in list(self._leases.values()):
            if lease.connection is connection:
                self._remove(lease, "left", "it left")

    def lease_of(self, connection: Connection) -> Lease:
        """The lease that hangs on a connection; ``RegistryError`` where there is none."""
        for lease in self._leases.values():
            if lease.connection is connection:
                return lease
        raise RegistryError(f"{connection.peer} is not a member")

    def connection_closed(self, connection: Connection, why: str) -> None:
        """The member whose lease it was, if any, is lost."""
        for lease in list(self._leases.values()):
            if lease.connection is connection:
                self._remove(lease, "lost", why)

    def _remove(self, lease: Lease, kind: str, why: str) -> None:
        del self._leases[lease.slot]
        lease.changed.set()
        self.gone.put(*lease.slot, (lease.member, why))
        self._broadcast(ViewChange(kind, lease.member, why))
        for callback in self.on_gone:
            callback(lease.member, why)

    def _broadcast(self, change: ViewChange) -> None:
        for lease in list(self._leases.values()):
            _tell(lease.connection, change)


def _tell(connection: Connection, change: ViewChange) -> None:
    connection.send_event(EVENT_TOPIC, encode(replace(change, why=change.why[:500])))

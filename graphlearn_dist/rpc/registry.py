"""The coordinator of a job: who is a member, and where.

It is a handful of ordinary callees of one endpoint. A member's lease is its connection: when that closes, the member
is lost, and every other member is told. Everything here runs on the hosting endpoint's loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import RegistryError
from .callees import Callees, current_connection
from .codec import encode, register_message
from .connection import Connection
from .peers import Member

HELLO = "registry.hello"
JOIN = "registry.join"
LEAVE = "registry.leave"
GATHER = "registry.gather"
EVENT_TOPIC = "registry.view"

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
    """A live member, and the connection its life hangs on."""

    member: Member
    world_size: int | None
    connection: Connection

    @property
    def slot(self) -> Slot:
        """Role and rank."""
        return (self.member.role, self.member.rank)


class Registry:
    """The members of a job.

    Args:
        name: the hosting endpoint.
    """

    def __init__(self, name: str) -> None:
        self.gone: dict[Slot, tuple[Member, str]] = {}  # slots that were taken once and are free now, and why
        self.on_gone: list[Callable[[Member, str], None]] = []
        self._name = name
        self._leases: dict[Slot, Lease] = {}

    def register(self, callees: Callees) -> None:
        """Make the registry callable."""
        callees.register(HELLO, self.hello)
        callees.register(JOIN, self.join)
        callees.register(LEAVE, self.leave)

    async def hello(self) -> str:
        """The name of the endpoint that hosts the registry."""
        return self._name

    async def join(self, member: Member, world_size: int | None) -> None:
        """Add the calling endpoint. Before the answer, it is sent one ``ViewChange`` for every member there is.

        A member that joins again, since it has lost its connection or did not get the answer in time, keeps its place:
        its lease hangs on the new connection.

        Raises:
            RegistryError: the member is not the caller, its slot or name is taken, or the world sizes differ.
        """
        connection = current_connection()
        if member.peer != connection.peer:
            raise RegistryError(f"member: {connection.peer} cannot join as {member.peer}")
        self._check_slot(member)
        self._check_world_size(member, world_size)
        lease = Lease(member, world_size, connection)
        for other in self._leases.values():
            _tell(connection, ViewChange("joined", other.member))
        self._leases[lease.slot] = lease
        self.gone.pop(lease.slot, None)
        self._broadcast(ViewChange("joined", member))

    def _check_slot(self, member: Member) -> None:
        for lease in self._leases.values():
            if lease.member.peer == member.peer:
                continue
            taken = lease.slot == (member.role, member.rank)
            if taken or lease.member.name == member.name:
                what = f"rank {member.rank} of {member.role}" if taken else f"the name {member.name!r}"
                raise RegistryError(f"{what} is taken: {lease.member.peer} is alive; {member.peer} cannot join")

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
        self.gone[lease.slot] = (lease.member, why)
        self._broadcast(ViewChange(kind, lease.member, why))
        for callback in self.on_gone:
            callback(lease.member, why)

    def _broadcast(self, change: ViewChange) -> None:
        for lease in list(self._leases.values()):
            _tell(lease.connection, change)


def _tell(connection: Connection, change: ViewChange) -> None:
    connection.send_event(EVENT_TOPIC, encode(replace(change, why=change.why[:500])))

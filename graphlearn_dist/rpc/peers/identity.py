"""Who an endpoint is, and where it is reached."""

from __future__ import annotations

import contextvars
import functools
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ...errors import InvalidArgumentError
from ...utils.message_types import register_message

_CURRENT_PEER: contextvars.ContextVar[Peer] = contextvars.ContextVar("current_peer")
_CURRENT_DEADLINE: contextvars.ContextVar[float] = contextvars.ContextVar("current_deadline")


@register_message(name="rpc.Peer")
@dataclass(frozen=True)
class Peer:
    """One endpoint of a process.

    Attributes:
        name: unique in a job, such as ``"server-0"``.
        role: the group it belongs to.
        rank: its rank in the group.
        incarnation: grows with every restart.
        pid: process id on its host.
        host: host name.
    """

    name: str
    role: str
    rank: int
    incarnation: int
    pid: int
    host: str

    @property
    def key(self) -> str:
        """A text that no other endpoint has."""
        return repr(self)

    def __str__(self) -> str:
        return f"{self.name} ({self.role} {self.rank}, pid {self.pid} on {self.host})"


@register_message(name="rpc.PeerAddress")
@dataclass(frozen=True)
class PeerAddress:
    """Where an endpoint listens.

    Attributes:
        host: TCP host, or "" where it has no TCP listener.
        port: TCP port.
        unix: name of its abstract unix socket, or "".
        boot_id: identifies its host; the unix socket serves processes with the same one.
        name: whom to expect there; "" for whoever answers.
    """

    host: str
    port: int
    unix: str = ""
    boot_id: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f"{self.host}:{self.port}" if self.host else f"unix:{self.unix}"
        return f"{self.name} at {where}" if self.name else where


# Whom a request is for: a member by name, one by role and rank, or whoever listens at an address.
Target: TypeAlias = str | tuple[str, int] | PeerAddress


@register_message(name="rpc.Member")
@dataclass(frozen=True)
class Member:
    """An entry of the registry: who, and where."""

    peer: Peer
    address: PeerAddress

    @property
    def name(self) -> str:
        """The member's unique name."""
        return self.peer.name

    @property
    def role(self) -> str:
        """The member's role."""
        return self.peer.role

    @property
    def rank(self) -> int:
        """The member's rank within its role."""
        return self.peer.rank


def current_peer() -> Peer:
    """Who made the request that the running callee answers.

    Raises:
        InvalidArgumentError: called outside of a callee.
    """
    try:
        return _CURRENT_PEER.get()
    except LookupError:
        raise InvalidArgumentError("current_peer: expected to be called inside a callee") from None


def current_deadline() -> float | None:
    """The ``time.monotonic()`` at which the caller of the running callee gives up; None outside of a callee."""
    return _CURRENT_DEADLINE.get(None)


def enter_request(peer: Peer, deadline: float | None) -> None:
    """Set what ``current_peer`` and ``current_deadline`` say in the running context."""
    _CURRENT_PEER.set(peer)
    if deadline is not None:
        _CURRENT_DEADLINE.set(deadline)


@functools.cache
def boot_id() -> str:
    """Identifies this host until it restarts; "" where the system does not say."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def describe_origin(sock: socket.socket) -> str:
    """Where a connected socket leads, for messages."""
    if sock.family == socket.AF_UNIX:
        return "a unix socket"
    try:
        host, port = sock.getpeername()[:2]
    except OSError:  # gone already
        return "a closed socket"
    return f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only processes of this host can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

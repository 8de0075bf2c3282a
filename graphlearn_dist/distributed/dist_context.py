"""Who this process is in a job: its role, its rank, and the sizes of the groups."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..errors import GraphLearnError, InvalidArgumentError, NotInitializedError, RegistryError
from ..utils.message_types import register_message

# Stands for a value where an argument may be left out but what follows it may not.
UNSET: Any = object()

DEFAULT_WORKER_GROUP = "_default_worker"
DEFAULT_SERVER_GROUP = "_default_server"
DEFAULT_CLIENT_GROUP = "_default_client"


@register_message
class DistRole(Enum):
    """What a process is: a worker samples and trains; a server samples for clients."""

    WORKER = 1
    SERVER = 2
    CLIENT = 3


@dataclass
class DistContext:
    """One process's place in a job.

    Attributes:
        role: its role.
        group_name: prefix of the names in its role group.
        world_size: processes in the role group.
        rank: its rank in the group, from 0.
        global_world_size: processes in the job; 0 leaves the number of clients open.
        global_rank: its rank in the job; servers come first, then clients.
        is_visiting: a client of a second job on the same servers, which count other clients: see ``role_name``.
    """

    role: DistRole
    group_name: str
    world_size: int
    rank: int
    global_world_size: int
    global_rank: int
    is_visiting: bool = False

    def __post_init__(self) -> None:
        for name, rank, size in (
            ("rank", self.rank, self.world_size),
            ("global_rank", self.global_rank, self.global_world_size),
        ):
            if rank < 0 or (size > 0 and rank >= size):
                raise InvalidArgumentError(f"{name}: expected 0 to {size - 1}, got {rank}")

    def is_worker(self) -> bool:
        """Whether the process is a worker."""
        return self.role is DistRole.WORKER

    def is_server(self) -> bool:
        """Whether the process is a server."""
        return self.role is DistRole.SERVER

    def is_client(self) -> bool:
        """Whether the process is a client."""
        return self.role is DistRole.CLIENT

    def num_servers(self) -> int:
        """Servers in the job."""
        if self.is_server():
            return self.world_size
        return self.global_world_size - self.world_size if self.is_client() else 0

    def num_clients(self) -> int:
        """Clients in the job; 0 where their number is open."""
        if self.is_client():
            return self.world_size
        return max(0, self.global_world_size - self.world_size) if self.is_server() else 0

    @property
    def role_name(self) -> str:
        """Among whom its rank counts: ``"server"``, ``"worker"``, ``"client"``, or ``"client:GROUP"`` of visitors."""
        name = self.role.name.lower()
        return f"{name}:{self.group_name}" if self.is_visiting else name

    @property
    def worker_name(self) -> str:
        """The process's unique name, ``{group_name}_{rank}``."""
        return f"{self.group_name}_{self.rank}"


_lock = threading.Lock()
_context: DistContext | None = None
_clients_to_servers: dict[int, list[int]] | None = None


def get_context() -> DistContext | None:
    """This process's context, or None before ``init_worker_group``, ``init_server`` or ``init_client``."""
    return _context


def _set_context(context: DistContext | None) -> None:
    global _context, _clients_to_servers
    with _lock:
        _context = context
        _clients_to_servers = None


def init_worker_group(world_size: int, rank: int, group_name: str | None = None) -> None:
    """Make this process a worker of a group without servers.

    Args:
        world_size: workers in the group.
        rank: this worker's rank, from 0.
        group_name: prefix of the workers' names; ``"_default_worker"`` by default.
    """
    name = group_name or DEFAULT_WORKER_GROUP
    _set_context(DistContext(DistRole.WORKER, name, world_size, rank, world_size, rank))


def _set_server_context(
    num_servers: int, server_rank: int, server_group_name: str | None = None, num_clients: int = 0
) -> None:
    """Make this process a server."""
    if num_servers < 1:
        raise InvalidArgumentError(f"num_servers: expected at least 1, got {num_servers}")
    name = server_group_name or DEFAULT_SERVER_GROUP
    total = num_servers + num_clients
    _set_context(DistContext(DistRole.SERVER, name, num_servers, server_rank, total, server_rank))


def _set_client_context(
    num_servers: int,
    num_clients: int,
    client_rank: int,
    client_group_name: str | None = None,
    *,
    is_dynamic: bool = False,
) -> None:
    """Make this process a client; see ``init_client``."""
    if num_servers < 1 or num_clients < 1:
        raise InvalidArgumentError(
            f"num_servers, num_clients: expected at least 1 of each, got {num_servers}, {num_clients}"
        )
    name = client_group_name or DEFAULT_CLIENT_GROUP
    is_visiting = is_dynamic and name != DEFAULT_CLIENT_GROUP
    total, global_rank = num_servers + num_clients, num_servers + client_rank
    _set_context(DistContext(DistRole.CLIENT, name, num_clients, client_rank, total, global_rank, is_visiting))


def _reset_context() -> None:
    """Forget who this process is; for shutdown."""
    _set_context(None)


def get_clients_to_servers() -> dict[int, list[int]]:
    """The servers of each client, as ``assign_server_by_order`` shares them out: client rank to server ranks.

    Raises:
        NotInitializedError: the process is neither client nor server.
    """
    global _clients_to_servers
    context = _context
    if context is None or context.is_worker():
        raise NotInitializedError("clients and servers exist only after init_server or init_client")
    with _lock:
        if _clients_to_servers is None:
            _clients_to_servers = {
                rank: _servers_of(rank, context.num_clients(), context.num_servers())
                for rank in range(context.num_clients())
            }
        return _clients_to_servers


def assign_server_by_order() -> list[int]:
    """The servers that this client takes its batches from, shared out evenly in the order of ranks.

    With at least as many servers as clients each server belongs to one client; with fewer, several clients share one.

    Returns:
        Server ranks.

    Raises:
        NotInitializedError: the process is not a client.
    """
    context = _context
    if context is None or not context.is_client():
        raise NotInitializedError("assign_server_by_order: expected to be called in a client, after init_client")
    return get_clients_to_servers()[context.rank]


def _servers_of(client_rank: int, num_clients: int, num_servers: int) -> list[int]:
    if num_servers <= num_clients:
        return [client_rank % num_servers]
    small, larger = divmod(num_servers, num_clients)
    start = client_rank * small + min(client_rank, larger)
    return list(range(start, start + small + (1 if client_rank < larger else 0)))


@contextlib.contextmanager
def undone_on_failure(who: str) -> Iterator[None]:
    """Where joining the job fails this process is no server; ``RegistryError`` says that an address cannot be bound."""
    try:
        yield
    except BaseException as error:
        _reset_context()
        if isinstance(error, OSError) and not isinstance(error, GraphLearnError):
            raise RegistryError(f"{who} cannot listen there: {error.strerror}") from error
        raise


def check_given(function: str, **arguments: Any) -> None:
    """Refuses arguments of a function that are ``UNSET``."""
    missing = [name for name, value in arguments.items() if value is UNSET]
    if missing:
        raise InvalidArgumentError(f"{function}: expected {', '.join(missing)}, which have no default")

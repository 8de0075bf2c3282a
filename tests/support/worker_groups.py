"""Groups of workers without servers, each in a process of its own."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from graphlearn_dist.distributed import init_rpc, init_worker_group, shutdown_rpc
from tests.support.processes import TestProcess, run_processes, start

DEADLINE_S = 120.0  # only ever reached by a hang


@contextlib.contextmanager
def member(rank: int, world_size: int, port: int, fd: int) -> Iterator[None]:
    """This process as a worker."""
    init_worker_group(world_size, rank)
    init_rpc("127.0.0.1", port, num_rpc_threads=2, rpc_timeout=DEADLINE_S, master_fd=fd if rank == 0 else -1)
    try:
        yield
    finally:
        shutdown_rpc()


@contextlib.contextmanager
def _meeting(world_size: int) -> Iterator[tuple[int, list[dict[str, int]]]]:
    """The listening socket where workers meet, and for each the arguments of ``member``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, fd = listener.getsockname()[1], listener.fileno()
        yield fd, [{"rank": rank, "world_size": world_size, "port": port, "fd": fd} for rank in range(world_size)]


def run_group(function: str, world_size: int, **kwargs: Any) -> list[Any]:
    """Runs a function, named by its module, in all workers of a group; what they returned, by rank."""
    with _meeting(world_size) as (fd, members):
        return run_processes([(function, {**each, **kwargs}) for each in members], DEADLINE_S, pass_fds=[fd])


@contextlib.contextmanager
def running_group(function: str, world_size: int, **kwargs: Any) -> Iterator[list[TestProcess]]:
    """The same, for the time of a block; their processes by rank."""
    with contextlib.ExitStack() as stack, _meeting(world_size) as (fd, members):
        yield [stack.enter_context(start(function, pass_fds=[fd], **each, **kwargs)) for each in members]

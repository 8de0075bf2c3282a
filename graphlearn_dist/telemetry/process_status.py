"""What a process says of itself to whoever looks at its job."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..config import num_restarts
from ..utils.message_types import register_message
from .loader_stats import MadeStats
from .samples import sources

_began = time.time()


@register_message
@dataclass(frozen=True)
class LoaderStatus:
    """A loader of the process.

    Attributes:
        name: its class and number.
        epoch: that began last; -1 before the first.
        batches: given since it was made.
        remaining: batches of this epoch that are left.
        wait_s, compute_s: time in which the loop waited for batches, and the rest of it.
        made: what makes its batches; None where servers do.
    """

    name: str
    epoch: int
    batches: int
    remaining: int
    wait_s: float
    compute_s: float
    made: MadeStats | None = None


@register_message
@dataclass(frozen=True)
class ServedStatus:
    """A loader of a client, on the server that makes batches for it.

    Attributes:
        client: whose.
        made: what was made, and by how many workers.
        ready: finished batches that wait for the client.
        room_bytes: memory that it may use.
        number: of the loader on its server, from 0; no other one ever gets it.
        credit_bytes: of batches that may be with the client unread.
        unread_bytes: of those that are.
    """

    client: str
    made: MadeStats
    ready: int
    room_bytes: int
    number: int = 0
    credit_bytes: int = 0
    unread_bytes: int = 0


@register_message
@dataclass(frozen=True)
class ProcessStatus:
    """A process of a job at a moment.

    Attributes:
        time_s: the moment, in seconds since 1970 by its host's clock.
        uptime_s: since this package was imported.
        cpu_s: processor time that it has used.
        private_bytes: memory of its own.
        loaders: that it has.
        served: loaders of clients that it makes batches for.
        budget_bytes, used_bytes: of a server, memory for batches, and what of it is given to loaders.
        peers: by name, bytes sent to and received from each peer that it ever had.
        restarts: how often the launcher has started it again.
    """

    time_s: float
    uptime_s: float
    cpu_s: float
    private_bytes: int
    loaders: list[LoaderStatus] = field(default_factory=list)
    served: list[ServedStatus] = field(default_factory=list)
    budget_bytes: int = 0
    used_bytes: int = 0
    peers: dict[str, list[int]] = field(default_factory=dict)
    restarts: int = 0


@dataclass(frozen=True)
class Budget:
    """Memory for batches of a server."""

    total_bytes: int
    used_bytes: int


def process_status() -> ProcessStatus:
    """This process's, now."""
    loaders: list[LoaderStatus] = []
    served: list[ServedStatus] = []
    peers: dict[str, list[int]] = {}
    budget = Budget(0, 0)
    for source in sources():
        for item in source.status():
            match item:
                case LoaderStatus():
                    loaders.append(item)
                case ServedStatus():
                    served.append(item)
                case Budget():
                    budget = item
                case (str(peer), int(sent), int(received)):
                    before = peers.get(peer, [0, 0])
                    peers[peer] = [before[0] + sent, before[1] + received]
    now, times = time.time(), os.times()
    return ProcessStatus(
        now,
        now - _began,
        times.user + times.system,
        private_bytes(),
        sorted(loaders, key=lambda loader: loader.name),
        served,
        budget.total_bytes,
        budget.used_bytes,
        peers,
        num_restarts(),
    )


def private_bytes() -> int:
    """Memory of this process alone."""
    return next(_sizes("RssAnon"))


def shared_bytes() -> int:
    """Memory that it shares: mapped files and shared memory."""
    return sum(_sizes("RssFile", "RssShmem"))


def _sizes(*names: str) -> Iterator[int]:
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in names:
                yield int(value.split()[0]) << 10

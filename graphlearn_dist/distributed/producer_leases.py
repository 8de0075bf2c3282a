"""What clients hold on a server: producers, each until its client closes it or is gone for good."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..config import lease_timeout_s
from ..errors import InvalidArgumentError, ProducerGoneError
from ..rpc.peers import Peer
from .memory_budget import Room
from .sampling_producer import SamplingProducer
from .worker_forks import ForkServer, hold_fork_server


@dataclass
class _Lease:
    """A producer, who asked for it and by which key, and the memory that it may use."""

    producer: SamplingProducer
    owner: Peer
    key: int
    room: Room


class ProducerLeases:
    """The producers of a server, by id. On one asyncio loop.

    A client's leases hang on its connection. When that is lost they run on for a while, so that a client that comes
    back finds its workers; then, or when the client says that it is done, everything goes that it held.

    Args:
        timeout_s: how long a client whose connection was lost may take to come back; ``GLD_LEASE_TIMEOUT``, else 3, if
            None.
        is_connected: whether a client has a connection now.
    """

    def __init__(self, timeout_s: float | None, is_connected: Callable[[Peer], bool]) -> None:
        self._timeout_s = lease_timeout_s() if timeout_s is None else timeout_s
        if not self._timeout_s >= 0:
            raise InvalidArgumentError(f"lease_timeout: expected at least 0 seconds, got {self._timeout_s}")
        self._is_connected = is_connected
        self._leases: dict[int, _Lease] = {}
        self._expiring: dict[Peer, asyncio.TimerHandle] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._first_id = 1 + secrets.randbits(48)  # a client of an earlier server must not meet another's producer
        self._next_id = itertools.count(self._first_id)
        self._resources = contextlib.ExitStack()
        self._forks: ForkServer | None = None  # held from the first producer on: it does not end with the last

    def new_id(self) -> tuple[int, int]:
        """The id of a producer to come, and its number for errors, from 0."""
        producer_id = next(self._next_id)
        return producer_id, producer_id - self._first_id

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[SamplingProducer]:
        return iter([lease.producer for lease in self._leases.values()])

    def add(self, producer_id: int, producer: SamplingProducer, owner: Peer, key: int, room: Room) -> None:
        """A client has got a producer that runs, by a key: see ``ProducerRequest``."""
        self._end(self._found(owner, key))  # one that was started beside it, for a connection that had just broken
        self._leases[producer_id] = _Lease(producer, owner, key, room)
        if self._forks is None:
            self._forks = self._resources.enter_context(hold_fork_server())

    def holds(self, producer_id: int, owner: Peer) -> bool:
        """Whether a client has that producer, still."""
        lease = self._leases.get(producer_id)
        return lease is not None and lease.owner == owner

    def producer(self, producer_id: int, asker: Peer) -> SamplingProducer:
        """The producer of that id, for the client that opened it.

        Raises:
            ProducerGoneError: there is none.
            InvalidArgumentError: it is another client's.
        """
        lease = self._leases.get(producer_id)
        if lease is None:
            raise ProducerGoneError(f"producer_id: there is no producer {producer_id} (any more)")
        if lease.owner != asker:
            raise InvalidArgumentError(
                f"producer_id: expected one that {asker} has opened, got {producer_id}, which is {lease.owner}'s"
            )
        return lease.producer

    # --- the end -----------------------------------------------------------------------------------------------

    def connection_lost(self, owner: Peer) -> None:
        """A client's last connection is gone: what it holds goes too, unless it comes back in time."""
        self._stop_timer(owner)
        if any(lease.owner == owner for lease in self._leases.values()):
            self._expiring[owner] = asyncio.get_running_loop().call_later(self._timeout_s, self._expire, owner)

    def _expire(self, owner: Peer) -> None:
        self._stop_timer(owner)
        if not self._is_connected(owner):
            self.end_of(owner)

    def _stop_timer(self, owner: Peer) -> None:
        timer = self._expiring.pop(owner, None)
        if timer is not None:
            timer.cancel()

    def end_of(self, owner: Peer) -> None:
        """Begins to end all that a client holds."""
        self._end([key for key, lease in self._leases.items() if lease.owner == owner])

    def _found(self, owner: Peer, key: int) -> list[int]:
        return [i for i, lease in self._leases.items() if key and (lease.owner, lease.key) == (owner, key)]

    async def close_of(self, owner: Peer, key: int) -> None:
        """Ends the producer that a client has asked for by that key, if there is one."""
        await _finished(self._end(self._found(owner, key)))

    async def close(self, producer_id: int, asker: Peer) -> None:
        """Ends a producer, also where whoever asked for it is gone before it has ended; none is no error.

        Raises:
            InvalidArgumentError: it is another client's.
        """
        if producer_id in self._leases:
            self.producer(producer_id, asker)
            await _finished(self._end([producer_id]))

    async def close_all(self) -> None:
        """Ends everything, and waits for what is ending already."""
        for owner in list(self._expiring):
            self._stop_timer(owner)
        self._end(list(self._leases))
        await _finished(list(self._endings))
        await asyncio.get_running_loop().run_in_executor(None, self._resources.close)

    def _end(self, producer_ids: list[int]) -> list[asyncio.Task[None]]:
        endings = [asyncio.create_task(_end(self._leases.pop(producer_id))) for producer_id in producer_ids]
        self._endings.update(endings)
        for ending in endings:
            ending.add_done_callback(self._endings.discard)
        return endings


async def _finished(endings: list[asyncio.Task[None]]) -> None:
    await asyncio.shield(asyncio.gather(*endings))


async def _end(lease: _Lease) -> None:
    try:
        await lease.producer.close()
    finally:
        lease.room.give_back()

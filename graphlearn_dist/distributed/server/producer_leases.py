"""What clients hold on a server: producers, each until its client closes it or is gone for good."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ... import _C
from ...config import lease_timeout_s
from ...errors import InvalidArgumentError, PeerLostError, ProducerGoneError
from ...rpc.peers.identity import Peer
from ...rpc.wire.failures import pack_failure
from ...telemetry.process_status import ServedStatus
from ..workers.fork_server import ForkServer, hold_fork_server
from ..workers.sampling_producer import SamplingProducer
from .memory_budget import Room

BATCHES = "batches"  # the service by which batches are asked for without the interpreter
_MAX_WITHDRAWN = 64  # of each client


@dataclass
class _Lease:
    """A producer, who asked for it and by which key, and the memory that it may use."""

    producer: SamplingProducer
    owner: Peer
    key: int
    room: Room
    number: int

    def status(self) -> ServedStatus:
        client = f"{self.owner.role} {self.owner.rank}"
        made, ready = self.producer.made, self.producer.num_ready
        return ServedStatus(client, made, ready, self.room.nbytes, self.number, *self.producer.credit)


class ProducerLeases:
    """The producers of a server, by id. On one asyncio loop.

    A client's leases hang on its connection. When that is lost they run on for a while, so that a client that comes
    back finds its workers; then, or when the client says that it is done, everything goes that it held.

    Args:
        timeout_s: how long a client whose connection was lost may take to come back; ``GLD_LEASE_TIMEOUT``, else 3, if
            None.
        is_connected: whether a client has a connection now.

    Attributes:
        answerer: gives clients their batches, without the interpreter.
    """

    def __init__(self, timeout_s: float | None, is_connected: Callable[[Peer], bool]) -> None:
        self._timeout_s = lease_timeout_s() if timeout_s is None else timeout_s
        if not self._timeout_s >= 0:
            raise InvalidArgumentError(f"lease_timeout: expected at least 0 seconds, got {self._timeout_s}")
        self.answerer = _C.BatchServer()
        self._is_connected = is_connected
        self._leases: dict[int, _Lease] = {}
        self._expiring: dict[Peer, asyncio.TimerHandle] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._opening: dict[tuple[int, Peer], asyncio.Task[Any]] = {}
        # Keys that were closed lately: a request that was held up on its way must not bring back what nobody knows of.
        self._withdrawn: dict[Peer, deque[int]] = {}
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

    def statuses(self) -> list[ServedStatus]:
        """What each producer has made, for whom. From any thread."""
        return [lease.status() for lease in list(self._leases.values())]

    @contextlib.asynccontextmanager
    async def opening(self, owner: Peer, key: int) -> AsyncIterator[None]:
        """The time in which a client's producer is started, by a key: see ``ProducerRequest``.

        Whoever asks with the same key again never heard of what was opened by it: that ends, and is waited for.

        Raises:
            ProducerGoneError: the client has closed that key.
            CancelledError: it closes it meanwhile, or asks again.
        """
        name, task = (key, owner), asyncio.current_task()
        if not key or task is None:
            yield
            return
        if key in self._withdrawn.get(owner, ()):
            raise ProducerGoneError(f"key: expected one that {owner} has not closed, got {key}")
        earlier, self._opening[name] = self._opening.get(name), task
        try:
            await _finished([self._ended(asyncio.create_task(self._end_all_of(name, earlier)))])
            yield
        finally:
            if self._opening.get(name) is task:
                del self._opening[name]

    async def withdraw(self, owner: Peer, key: int) -> None:
        """Ends what a client has opened, or is opening, by a key, and what it still asks for by it; none is no error.

        It ends also where whoever asked for that is gone before it has.
        """
        name = (key, owner)
        self._withdrawn.setdefault(owner, deque(maxlen=_MAX_WITHDRAWN)).append(key)
        await _finished([self._ended(asyncio.create_task(self._end_all_of(name, self._opening.pop(name, None))))])

    async def _end_all_of(self, name: tuple[int, Peer], opening: asyncio.Task[Any] | None) -> None:
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
        await _finished(self._end([i for i, lease in self._leases.items() if (lease.key, lease.owner) == name]))

    async def discard(self, producer: SamplingProducer) -> None:
        """Ends a producer that was not added. A caller that is cancelled meanwhile waits for that end all the same."""
        await _finished([self._ended(asyncio.create_task(producer.close()))])

    def add(self, producer_id: int, producer: SamplingProducer, owner: Peer, key: int, room: Room) -> None:
        """A client has got a producer that runs. Within ``opening``."""
        self._leases[producer_id] = _Lease(producer, owner, key, room, producer_id - self._first_id)
        self.answerer.add(producer_id, producer.shelf, owner.key, str(owner))
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
        if owner in self._withdrawn or any(lease.owner == owner for lease in self._leases.values()):
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
        """Begins to end all that a client holds, and forgets what it has closed."""
        self._withdrawn.pop(owner, None)
        self._end([key for key, lease in self._leases.items() if lease.owner == owner])

    async def close(self, producer_id: int, asker: Peer) -> None:
        """Ends a producer, also where whoever asked for it is gone before it has ended; none is no error.

        Raises:
            InvalidArgumentError: it is another client's.
        """
        if producer_id in self._leases:
            self.producer(producer_id, asker)
            await _finished(self._end([producer_id]))

    async def close_all(self, why: PeerLostError) -> None:
        """Ends everything, and waits for what is ending already; who waits for a batch is told why."""
        self.answerer.end(_C.pack(pack_failure(why)))
        for producer in self:
            producer.end(why)
        for owner in list(self._expiring):
            self._stop_timer(owner)
        self._end(list(self._leases))
        await _finished(list(self._endings))
        await asyncio.get_running_loop().run_in_executor(None, self._resources.close)

    def _end(self, producer_ids: list[int]) -> list[asyncio.Task[None]]:
        for producer_id in producer_ids:
            self.answerer.remove(producer_id)
        return [self._ended(asyncio.create_task(_end(self._leases.pop(i)))) for i in producer_ids]

    def _ended(self, ending: asyncio.Task[None]) -> asyncio.Task[None]:
        """The same task, which now goes on without whoever began it."""
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return ending


async def _finished(endings: list[asyncio.Task[None]]) -> None:
    await asyncio.shield(asyncio.gather(*endings))


async def _end(lease: _Lease) -> None:
    try:
        await lease.producer.close()
    finally:
        lease.room.give_back()

"""What a server keeps for clients whose word was lost, or came late."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from graphlearn_dist import _C
from graphlearn_dist.distributed.server import producer_leases
from graphlearn_dist.distributed.server.producer_leases import ProducerLeases
from graphlearn_dist.errors import PeerLostError, ProducerGoneError
from graphlearn_dist.rpc.peers.identity import Peer

DEADLINE_S = 30.0  # only ever reached by a hang
OWNER, OTHER = (Peer(f"client-{rank}", "client", rank, 1, 4711, "host") for rank in range(2))
KEY = 7


class Producer:
    """Stands for a producer, and for the memory that it may use."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.gave_back = False
        self.shelf = _C.BatchShelf("producer", 1)
        self.told: list[Exception] = []
        self.end = self.told.append

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed.set()

    def give_back(self) -> None:
        self.gave_back = True


class Server:
    """Opens producers as a server does, as soon as ``go_on`` is set."""

    def __init__(self) -> None:
        self.leases = ProducerLeases(0.0, lambda client: True)
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.is_starting = asyncio.Event()
        self.started: list[Producer] = []

    async def open(self, owner: Peer = OWNER, key: int = KEY) -> int:
        async with self.leases.opening(owner, key):
            producer_id, _ = self.leases.new_id()
            producer: Any = Producer()
            self.started.append(producer)
            self.is_starting.set()
            try:
                await self.go_on.wait()
            except BaseException:
                await self.leases.discard(producer)
                raise
            self.leases.add(producer_id, producer, owner, key, producer)
            return producer_id

    async def begin_to_open(self) -> asyncio.Task[int]:
        """An opening that waits."""
        self.go_on.clear()
        self.is_starting.clear()
        opening = asyncio.create_task(self.open())
        await self.is_starting.wait()
        return opening


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def hold() -> Iterator[None]:
        yield

    monkeypatch.setattr(producer_leases, "hold_fork_server", hold)


def run(scenario: Callable[[Server], Awaitable[None]]) -> None:
    async def whole() -> None:
        server = Server()
        await asyncio.wait_for(scenario(server), DEADLINE_S)
        left, why = [*server.leases], PeerLostError("server-0", "it was shut down")
        await server.leases.close_all(why)
        assert all(each.told == [why] for each in left)  # type: ignore[attr-defined]
        assert all(producer.closed.is_set() for producer in server.started)

    asyncio.run(whole())


def test_who_asks_again_gets_one_producer_in_all() -> None:
    async def scenario(server: Server) -> None:
        first, others = (
            await server.open(),
            [await server.open(OTHER), await server.open(key=0), await server.open(key=0)],
        )
        second = await server.open()
        assert server.started[0].closed.is_set()
        assert server.started[0].gave_back
        assert [server.leases.holds(i, OWNER) for i in (first, second, *others)] == [False, True, False, True, True]
        assert server.leases.holds(others[0], OTHER)

    run(scenario)


def test_who_asks_again_while_the_first_request_is_still_served() -> None:
    """As where the first one's connection was cut, and the server does not know yet."""

    async def scenario(server: Server) -> None:
        stale = await server.begin_to_open()
        again = asyncio.create_task(server.open())
        with pytest.raises(asyncio.CancelledError):
            await stale
        server.go_on.set()
        assert server.leases.holds(await again, OWNER)
        assert [producer.closed.is_set() for producer in server.started] == [True, False]

    run(scenario)


def test_what_is_withdrawn() -> None:
    """What runs, what is being started, and what comes late; nothing of another client's."""

    async def scenario(server: Server) -> None:
        other = await server.open(OTHER)
        opened = await server.open()
        await server.leases.withdraw(OWNER, KEY)
        assert not server.leases.holds(opened, OWNER)
        assert server.started[1].closed.is_set()
        await server.leases.withdraw(OWNER, KEY)
        with pytest.raises(ProducerGoneError, match=f"key: expected one that client-0 .* has not closed, got {KEY}"):
            await server.open()
        assert server.leases.holds(other, OTHER)

    run(scenario)


def test_what_is_withdrawn_while_it_is_started() -> None:
    async def scenario(server: Server) -> None:
        opening = await server.begin_to_open()
        await server.leases.withdraw(OWNER, KEY)
        assert opening.cancelled()
        assert server.started[0].closed.is_set()
        assert len(server.leases) == 0

    run(scenario)


def test_who_withdraws_and_is_gone() -> None:
    """What was begun goes on."""

    async def scenario(server: Server) -> None:
        await server.open()
        withdrawing = asyncio.create_task(server.leases.withdraw(OWNER, KEY))
        await asyncio.sleep(0)
        withdrawing.cancel()
        await server.started[0].closed.wait()

    run(scenario)

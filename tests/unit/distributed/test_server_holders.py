"""How a server finds out who holds the other partitions, and sees to it that its sampling workers know."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from graphlearn_dist.distributed import rpc
from graphlearn_dist.distributed.partitions.partition_peers import PartitionHolders
from graphlearn_dist.distributed.server.server_holders import ServerHolders
from graphlearn_dist.errors import DeadlineExceededError, InvalidArgumentError, PeerLostError
from graphlearn_dist.rpc.peers.identity import PeerAddress

DEADLINE_S = 60.0  # only ever reached by a hang
LOST = PeerLostError("server 1", "connection closed")


class Producer:
    """What ``ServerHolders`` needs of one."""

    def __init__(self, reconnect_timeout_s: float = DEADLINE_S) -> None:
        self.reconnect_timeout_s = reconnect_timeout_s
        self.told: asyncio.Queue[PartitionHolders] = asyncio.Queue()

    async def move_holders(self, holders: PartitionHolders) -> None:
        self.told.put_nowait(holders)


class Servers(ServerHolders):
    """The others answer as the test says; news of members comes when it is set."""

    def __init__(self, producers: list[Producer], *answers: PartitionHolders | Exception) -> None:
        dataset: Any = SimpleNamespace(num_partitions=2, partition_idx=0)
        handle: Any = None  # nobody asks for it
        super().__init__(dataset, handle, producers)  # type: ignore[arg-type]
        self.answers = list(answers)

    async def _ask(self, timeout_s: float | None) -> PartitionHolders:
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def holders(port: int) -> PartitionHolders:
    return PartitionHolders({1: PeerAddress("127.0.0.1", port)})


@pytest.fixture
def news(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it would have waited for news of the members, each time."""
    waited: list[float] = []

    async def members_changed(timeout_s: float) -> None:
        waited.append(timeout_s)
        await asyncio.sleep(0)

    monkeypatch.setattr(rpc, "get_endpoint", lambda: SimpleNamespace(members_changed=members_changed))
    return waited


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))


def test_workers_are_told_also_where_another_has_asked_before_the_news_came() -> None:
    """A loader that is opened between a server's coming and the news of it must not keep them from older loaders."""

    async def scenario() -> None:
        producer = Producer()
        servers = Servers([producer], holders(1), holders(2))
        assert await servers.find() == holders(1)
        servers.server_lost()
        assert await servers.find() == holders(2)  # for that other loader
        servers.server_joined()
        assert await producer.told.get() == holders(2)

    run(scenario)


def test_what_mends_itself_is_tried_again_at_the_next_news(news: list[float]) -> None:
    async def scenario() -> None:
        producer = Producer()
        servers = Servers([producer], LOST, DeadlineExceededError("no answer"), holders(3))
        servers.server_joined()
        assert await producer.told.get() == holders(3)
        assert len(news) == 2
        assert max(news) < 1.0

    run(scenario)


def test_servers_that_come_while_workers_are_told() -> None:
    async def scenario() -> None:
        producer = Producer()
        servers = Servers([producer], holders(1), holders(2))
        servers.server_joined()
        assert await producer.told.get() == holders(1)
        servers.server_lost()
        servers.server_joined()
        servers.server_joined()
        assert await producer.told.get() == holders(2)

    run(scenario)


@pytest.mark.parametrize("error", [InvalidArgumentError("no server holds partitions [1]"), LOST])
def test_what_cannot_be_mended_is_said(error: Exception, news: list[float], caplog: pytest.LogCaptureFixture) -> None:
    """At once, or when no worker waits any more; a server that comes later begins it anew."""

    async def scenario() -> None:
        producer = Producer(reconnect_timeout_s=0.0)
        servers = Servers([producer], error)
        servers.server_joined()
        assert servers._telling is not None
        await servers._telling
        assert producer.told.empty()
        servers.answers = [holders(4)]
        servers.server_joined()
        assert await producer.told.get() == holders(4)

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert [record.getMessage() for record in caplog.records] == [
        f"sampling workers cannot be told who serves the other partitions: {error}"
    ]
    assert news == []


def test_nobody_is_asked_for_nobody() -> None:
    async def scenario() -> None:
        servers = Servers([], InvalidArgumentError("nobody should have asked"))
        servers.server_joined()
        assert servers._telling is not None
        await servers._telling

    run(scenario)

"""Which losses of a server a loader gets over, and which it gives up; no server is needed to decide it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from graphlearn_dist.distributed.producers import server_recovery
from graphlearn_dist.distributed.producers.server_recovery import ServerRecovery
from graphlearn_dist.errors import (
    DeadlineExceededError,
    GraphLearnError,
    InvalidArgumentError,
    PeerLostError,
    ProducerGoneError,
)

LOST = PeerLostError("server 0", "its connection was closed")
TIMEOUT_S = 10.0


class Server:
    """What taking a server up and asking it give, one after the other; a try takes a second of a clock of its own."""

    def __init__(self, *tries: object, timeout_s: float = TIMEOUT_S) -> None:
        self.alarm: Future[None] = Future()
        self.is_over = False
        self.limits_s: list[float] = []
        self._tries = list(tries)
        self._now = 0.0
        self.recovery = ServerRecovery(timeout_s, self.alarm, lambda: self.is_over, clock=lambda: self._now)

    def _next(self) -> Any:
        self._now += 1.0
        outcome = self._tries.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome() if callable(outcome) else outcome

    def _take_up(self, limit_s: float) -> Any:
        self.limits_s.append(limit_s)
        return self._next()

    def recover(self, lost: GraphLearnError = LOST, **options: Any) -> Any:
        result = self.recovery.recover("server 0", lost, self._take_up, lambda held: (held, self._next()), **options)
        assert self._tries == []
        return result


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_recovery, "_RETRY_S", 0.0)


def test_it_is_tried_until_it_is_back() -> None:
    server = Server(LOST, DeadlineExceededError("no answer"), "producer", "batch")
    assert server.recover() == ("producer", "batch")
    assert server.limits_s == [10.0, 9.0, 8.0]


def test_another_loss_has_as_much_time_again() -> None:
    server = Server("one", ProducerGoneError("gone"), LOST, "two", LOST, "three", "batch")
    assert server.recover() == ("three", "batch")
    assert server.limits_s == [10.0, 10.0, 9.0, 10.0]


@pytest.mark.parametrize("lost", [LOST, ProducerGoneError("it has none")])
def test_one_that_does_not_come_back(lost: GraphLearnError) -> None:
    with pytest.raises(PeerLostError, match=r"server 0.*it was not back within reconnect_timeout=2 s") as raised:
        Server(LOST, LOST, timeout_s=2.0).recover(lost)
    assert raised.value.__cause__ is lost
    with pytest.raises(PeerLostError, match=r"it was not back within reconnect_timeout=0 s"):
        Server(timeout_s=0.0).recover(lost)


def test_one_that_nobody_wants_any_more_is_not_tried_again() -> None:
    server = Server(LOST)
    server._tries.insert(0, lambda: setattr(server, "is_over", True) or server._next())
    with pytest.raises(PeerLostError, match="its connection was closed"):
        server.recover()
    assert (server.limits_s, server._tries) == ([10.0], [])


def test_the_last_loss_of_too_many_is_raised() -> None:
    losses = [PeerLostError("server 0", f"loss {number}") for number in range(server_recovery._MAX_LOSSES)]
    tries = [outcome for loss in losses for outcome in ("producer", loss)]
    with pytest.raises(PeerLostError, match=f"loss {len(losses) - 1}"):
        Server(*tries).recover()
    server = Server(*tries, "producer", "batch")
    assert server.recover(is_counted=False) == ("producer", "batch")
    server = Server()
    for _ in losses:
        server._tries = ["producer", "batch"]
        server.recover()
    with pytest.raises(PeerLostError, match="closed"):
        server.recover()


@pytest.mark.parametrize("error", [DeadlineExceededError("no batch"), InvalidArgumentError("other seeds")])
def test_what_is_no_loss_is_raised(error: GraphLearnError) -> None:
    with pytest.raises(type(error), match=str(error)):
        Server("producer", error).recover()


def give_up(server: Server) -> None:
    server.alarm.set_exception(PeerLostError("server 1", "the launcher has given it up"))


def end_session(server: Server) -> None:
    server.is_over = True


@pytest.mark.parametrize("end", [give_up, end_session])
def test_nothing_is_tried_where_it_is_no_use(end: Callable[[Server], None]) -> None:
    server = Server()
    end(server)
    with pytest.raises(PeerLostError, match="connection was closed"):
        server.recover()

    def end_and_lose() -> None:
        end(server)
        raise PeerLostError("server 0", "lost again")

    server = Server("producer", end_and_lose)
    with pytest.raises(PeerLostError, match="lost again"):
        server.recover()


def test_a_try_ends_where_the_launcher_gives_up() -> None:
    def lose() -> None:
        give_up(server)
        raise PeerLostError("server 1", "the launcher has given it up")

    server = Server(lose)
    with pytest.raises(PeerLostError, match="server 1"):
        server.recover()

"""What a closed connection held is given back by itself: nothing of it waits for a garbage collection."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.connection import Connection
from graphlearn_dist.rpc.peers import links

pytestmark = pytest.mark.usefixtures("engines")

DEADLINE_S = 60.0
STRANGERS = {
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nConnection: close\r\n\r\n",
    "nothing": b"",
}


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[threading.Event]]:
    """One for each connection that a test makes, set when it is freed, while nothing collects garbage."""
    events: list[threading.Event] = []

    def make(*args: Any, **kwargs: Any) -> Connection:
        connection, event = Connection(*args, **kwargs), threading.Event()
        weakref.finalize(connection, event.set)
        events.append(event)
        return connection

    monkeypatch.setattr(links, "Connection", make)
    gc.disable()
    yield events
    gc.enable()


async def echo(value: Any) -> Any:
    return value


async def fail() -> None:
    raise KeyError("no such thing")


@pytest.mark.parametrize("use_unix", [True, False])
def test_a_connection_of_a_visitor(freed: list[threading.Event], use_unix: bool) -> None:
    gone = threading.Event()
    with Endpoint("server", 0, use_unix=use_unix) as server:
        server.register("echo", echo)
        server.register("fail", fail)
        server.on_peer_lost(lambda peer, why: gone.set())
        with Endpoint("client", 0, use_unix=use_unix) as client:
            for size in (10, 1 << 20, 1 << 20):  # the second large one may pass through shared memory
                assert client.call(server.address, "echo", torch.ones(size)).sum() == size
            with pytest.raises(Exception, match="no such thing"):
                client.call(server.address, "fail")
        assert gone.wait(DEADLINE_S)
        assert server.stats().connections == 0  # and its loop has left what told of the loss
        assert [event.wait(DEADLINE_S) for event in freed] == [True, True]


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_connection_of_a_stranger(freed: list[threading.Event], stranger: str) -> None:
    with Endpoint("server", 0) as server:
        with socket.create_connection((server.address.host, server.address.port), DEADLINE_S) as sock:
            sock.sendall(STRANGERS[stranger])
            if not STRANGERS[stranger]:
                sock.shutdown(socket.SHUT_WR)
            while sock.recv(1000):
                pass
        assert [event.wait(DEADLINE_S) for event in freed] == [True]
        assert server.stats().connections == 0

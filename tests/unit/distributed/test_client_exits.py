"""When a server need not wait for its clients any more."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from graphlearn_dist.config import LaunchContext
from graphlearn_dist.distributed import get_server, init_server, shutdown_server
from graphlearn_dist.distributed.server import client_exits
from graphlearn_dist.distributed.server.client_exits import ClientExits
from graphlearn_dist.rpc.peers.identity import Peer
from tests.support.jobs import load, make_partitions

DEADLINE_S = 60.0  # only ever reached by a hang


def client(rank: int, incarnation: int = 1) -> Peer:
    return Peer(f"client-{rank}", "client", rank, incarnation, 4711, "host")


def test_clients_that_say_so_and_clients_that_leave() -> None:
    roll = ClientExits(2)
    assert not roll.is_over()
    roll.done(client(0))
    assert not roll.is_over()
    roll.done(Peer("server-1", "server", 1, 1, 1, "host"))
    assert not roll.is_over()
    for visitor in (client(2), Peer("other_1", "client:other", 1, 1, 1, "host")):  # of another job, on the same servers
        roll.done(visitor)
        roll.lost(visitor)
        roll.joined(visitor)
    assert not roll.is_over()
    roll.done(client(1))
    assert roll.is_over()


def test_an_open_number_of_clients() -> None:
    roll = ClientExits(0)
    roll.done(client(0))
    roll.lost(client(1))
    assert not roll.is_over()
    roll.end()
    assert roll.is_over()


def visitor(rank: int) -> Peer:
    return Peer(f"other_{rank}", "client:other", rank, 1, 4711, "host")


def test_a_group_says_that_it_was_all() -> None:
    """Of an open number of clients: its own members are waited for, and those of others that are there."""
    roll = ClientExits(0)
    roll.joined(client(0))
    roll.done(client(0), 2)
    assert not roll.is_over()  # the other one has not come yet
    for peer in (client(1), visitor(0), visitor(1)):
        roll.joined(peer)
    roll.done(client(1))  # it was lost on its way out, or left otherwise
    assert not roll.is_over()
    roll.done(visitor(0), 2)
    roll.done(client(0))  # left, as it had said
    assert not roll.is_over()
    roll.done(visitor(1), 2)
    assert roll.is_over()
    roll.joined(client(1, incarnation=2))
    assert not roll.is_over()


def test_nothing_is_kept_of_visitors() -> None:
    roll = ClientExits(0)
    for peer in (client(0), visitor(0), visitor(1)):
        roll.joined(peer)
    for peer in (visitor(0), visitor(1), visitor(1)):
        roll.done(peer)
    roll.lost(visitor(1))
    assert not roll.is_over()
    assert (roll._there, roll._done, roll._lost) == ({("client", 0)}, {}, {})


def test_a_client_that_comes_back() -> None:
    """One that was done before its connection to the registry broke is; a new one in its place is waited for."""
    roll = ClientExits(2)
    for rank in range(2):
        roll.done(client(rank))
    roll.lost(client(0))
    roll.joined(client(0))
    assert roll.is_over()
    roll.joined(client(0, incarnation=2))
    assert not roll.is_over()


def test_clients_that_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_exits, "_RETURN_S", 0.2)
    roll = ClientExits(2)
    for rank in range(2):
        roll.lost(client(rank))
    roll.joined(client(1))
    assert not roll.is_over()
    roll.lost(client(1))
    waiting = threading.Thread(target=roll.wait, args=(60.0,), daemon=True)
    waiting.start()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()


@pytest.mark.parametrize("is_launched", [False, True])
def test_a_launcher_knows_better_who_is_lost(
    is_launched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that froze, or whose network broke, for however long finds the servers of its job where they were."""
    monkeypatch.setattr(client_exits, "_RETURN_S", 0.0)
    if is_launched:
        for name, value in LaunchContext("server", 0, 1, 1, "127.0.0.1", 0).to_environ().items():
            monkeypatch.setenv(name, value)
    init_server(1, 1, 0, load(make_partitions(tmp_path, 1)), "127.0.0.1", 0)
    try:
        roll = get_server()._clients
        roll.lost(client(0))
        assert roll.is_over() is not is_launched
        roll.done(client(0))
        assert roll.is_over()
    finally:
        shutdown_server()

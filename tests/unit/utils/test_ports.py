"""Ports that are named before anybody listens there."""

from __future__ import annotations

import random
import socket
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from graphlearn_dist.errors import ResourceInsufficientError
from graphlearn_dist.utils import get_free_port, seed_everything
from graphlearn_dist.utils.system.ports import free_port, reserved_port

DEADLINE_S = 30.0  # only ever reached by a hang


def test_any_port_is_none_that_the_system_gives_away() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if lowest <= 20_000:
        pytest.skip("this system gives all ports away")
    assert all(20_000 <= port < lowest for port in (free_port(""), get_free_port()))


def test_processes_with_one_seed_are_told_different_ports() -> None:
    state = random.getstate()
    try:
        told = set()
        for _ in range(8):
            seed_everything(1)
            told.add(free_port(""))
    finally:
        random.setstate(state)
    assert len(told) > 1


def test_a_range_of_ports(port: int) -> None:
    for address in ("", "127.0.0.1"):
        assert free_port(address, port, port) == port
    with socket.create_server(("127.0.0.1", port)):
        for address in ("", "127.0.0.1"):
            with pytest.raises(ResourceInsufficientError, match=f"a free one of {port} to {port} on "):
                free_port(address, port, port)


@pytest.mark.parametrize("use_libuv", [True, False])
def test_a_port_that_is_reserved_for_torch(use_libuv: bool) -> None:
    """torch may listen there, again and again, and nobody is given it."""
    with reserved_port() as port:
        for address in ("127.0.0.1", "0.0.0.0"):
            with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
                stranger.bind((address, port))
        for _ in range(2):
            store = TCPStore(
                "127.0.0.1",
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=DEADLINE_S),
                use_libuv=use_libuv,
            )
            store.set("key", "value")
            assert store.get("key") == b"value"
            del store
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the stores linger
        free.bind(("127.0.0.1", port))
        free.listen()

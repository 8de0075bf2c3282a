"""The link between two hosts of the fault harness."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.faults.link import Link, address
from tests.support.processes import ROOT

pytestmark = pytest.mark.faults

DEADLINE_S = 60.0  # only ever reached by a hang
_KNOCK = """
import sys, socket
from tests.faults.link import join
join(sys.argv[1])
try:
    with socket.create_connection((sys.argv[2], int(sys.argv[3])), 60) as connection:
        print("said", connection.recv(5).decode())
except OSError as error:
    print("error", error.errno)
"""


@pytest.fixture
def link() -> Iterator[Link]:
    try:
        made = Link()
    except OSError as error:
        pytest.skip(f"no hosts can be made here: {error}")
    with contextlib.closing(made):
        yield made


def knock(link: Link, server: socket.socket) -> str:
    """What a process on the second host hears from a server on the first."""
    host, port = server.getsockname()
    argv = [sys.executable, "-c", _KNOCK, link.path(1), host, str(port)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        if select.select([server, other.stdout], [], [], DEADLINE_S)[0] == [server]:
            with server.accept()[0] as connection:
                connection.sendall(b"hello")
        said, _ = other.communicate(timeout=DEADLINE_S)
    return str(said).strip()


def test_a_link_that_goes_down_and_comes_back(link: Link) -> None:
    """Another process reaches the host where it is up, and is told that it does not where its own end is down."""
    with link.listen(0) as server:
        assert server.getsockname()[0] == address(0)
        assert knock(link, server) == "said hello"
        link.set_up(1, is_up=False)
        assert knock(link, server) == f"error {errno.ENETUNREACH}"
        link.set_up(1, is_up=True)
        link.limit("2mbit")
        assert knock(link, server) == "said hello"
        link.limit(None)


def test_this_process_stays_in_its_own_network(link: Link) -> None:
    before = os.readlink("/proc/thread-self/ns/net")
    with contextlib.closing(Link()) as other, other.listen(1):
        assert os.readlink("/proc/thread-self/ns/net") == before
        networks = {os.stat(one.path(number)).st_ino for one in (link, other) for number in range(2)}
    assert len(networks | {os.stat("/proc/thread-self/ns/net").st_ino}) == 5

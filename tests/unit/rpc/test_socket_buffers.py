"""What lies in the kernel between two processes."""

from __future__ import annotations

import socket

import pytest

from graphlearn_dist.rpc.engine.framing import tune_socket


def granted(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_local_peers_queue_fits_a_cores_cache(kind: str) -> None:
    if kind == "unix":
        ends = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ends = (socket.create_connection(listener.getsockname()), listener.accept()[0])
    with ends[0] as one, ends[1] as another:
        for end in (one, another):
            tune_socket(end)
            assert granted(end) <= 1 << 20  # the kernel doubles what it is asked for
            assert not end.getblocking()
        if kind == "tcp":
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_socket_whose_peer_is_gone() -> None:
    with socket.socket() as alone:
        before = granted(alone)
        tune_socket(alone)
        assert granted(alone) == before

"""Who gets in, and what becomes of those who do not: refused, counted, logged, and nobody else notices."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.config import RpcSettings, job_token
from graphlearn_dist.data import shared_memory
from graphlearn_dist.errors import AuthenticationError, InvalidArgumentError, ProtocolError
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.peers import links
from graphlearn_dist.rpc.peers.handshake import MAX_PENDING, Handshake, Introduction
from graphlearn_dist.rpc.peers.identity import Peer
from graphlearn_dist.rpc.peers.refusals import Refusals
from graphlearn_dist.rpc.shm.arena import SendingArena
from graphlearn_dist.rpc.wire import gld1
from graphlearn_dist.rpc.wire.gld1 import Kind

DEADLINE_S = 60.0
TOKEN = b"the job's token"
LOGGER = "graphlearn_dist.rpc.peers.refusals"


def introduction(name: str = "client-7") -> Introduction:
    return Introduction(Peer(name, "client", 7, 1, 4711, "host"), "boot", 1 << 20, 8)


@pytest.fixture(params=["native", "python"])
def server(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    with Endpoint("server", 0, settings=RpcSettings(engine=request.param), token=TOKEN) as endpoint:
        endpoint.register("echo", lambda x: x)
        yield endpoint


# --- strangers ---------------------------------------------------------------------------------------------------


def connect(server: Endpoint) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.address.port), DEADLINE_S)


def until_closed(sock: socket.socket) -> bytes:
    """What comes until the other side closes."""
    received = b""
    with contextlib.suppress(ConnectionError):  # it closed while there was more to read
        while chunk := sock.recv(65536):
            received += chunk
    return received


def read_frame(sock: socket.socket) -> tuple[Kind, list[Any]]:
    """The next frame, which has no payload."""
    header = gld1.parse_header(sock.recv(gld1.HEADER_BYTES, socket.MSG_WAITALL), max_payload=0)
    head = sock.recv(header.padded_head_len, socket.MSG_WAITALL)
    return header.kind, gld1.split_head(head[: header.head_len])[0]


def send(data: bytes) -> Callable[[socket.socket], None]:
    def act(sock: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)

    return act


def say_nothing(sock: socket.socket) -> None:
    return None


def dribble(sock: socket.socket) -> None:
    """A valid HELLO, a byte a second."""
    sock.settimeout(1.0)
    for byte in Handshake(introduction(), TOKEN, connecting=True).hello():
        try:
            sock.sendall(bytes([byte]))
            assert sock.recv(1) == b""
        except TimeoutError:
            continue
        except ConnectionError:  # it closed as this byte came
            return
        return


def stay_half_open(sock: socket.socket) -> None:
    """A valid HELLO, and silence."""
    sock.sendall(Handshake(introduction(), TOKEN, connecting=True).hello())
    assert read_frame(sock)[0] == Kind.CHALLENGE


def prove_nothing(sock: socket.socket) -> None:
    """The frames of a peer that does not care what the server proves, and then a request."""
    sock.sendall(Handshake(introduction(), TOKEN, connecting=True).hello())
    assert read_frame(sock)[0] == Kind.CHALLENGE
    request = gld1.pack_frame(Kind.REQUEST, 1, gld1.pack_head(["echo", 0]))
    sock.sendall(gld1.pack_frame(Kind.AUTH, 0, gld1.pack_head([b""])) + request)


def send_back_its_proof(sock: socket.socket) -> None:
    """What the server sent as its own proof, as ours."""
    sock.sendall(Handshake(introduction(), TOKEN, connecting=True).hello())
    mac = read_frame(sock)[1][2]
    sock.sendall(gld1.pack_frame(Kind.AUTH, 0, gld1.pack_head([mac])))


NOT_PROVEN = "could not prove that it knows ours"
TOO_SLOW = "no handshake within 3 s"
STRANGERS: dict[str, tuple[Callable[[socket.socket], None], str]] = {
    "silent": (say_nothing, TOO_SLOW),
    "slow": (dribble, TOO_SLOW),
    "half-open": (stay_half_open, TOO_SLOW),
    "short": (send(b"GET / HTTP/1.0\r\n\r\n"), TOO_SLOW),
    "http": (send(b"GET /metrics HTTP/1.1\r\nHost: example\r\n\r\n"), "not a GLD1 frame"),
    "tls": (send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)), "not a GLD1 frame"),
    "garbage": (send(os.urandom(1 << 20)), "not a GLD1 frame"),
    "huge": (send(struct.pack("<4sBBHQIIQ", b"GLD1", 1, 1, 0, 0, 8, 0, 1 << 60)), "payload: expected at most 0"),
    "no proof": (prove_nothing, NOT_PROVEN),
    "reflected proof": (send_back_its_proof, NOT_PROVEN),
}


def test_strangers_are_refused_and_disturb_nobody(server: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    settings = RpcSettings(engine=server.settings.engine)
    failures: list[BaseException] = []

    def visit(act: Callable[[socket.socket], None]) -> None:
        try:
            with connect(server) as sock:
                with contextlib.suppress(ConnectionError):  # closed while it still spoke
                    act(sock)
                sock.settimeout(DEADLINE_S)
                until_closed(sock)
        except BaseException as error:
            failures.append(error)

    with Endpoint("client", 0, settings=settings, token=TOKEN, use_unix=False) as known:
        assert known.call(server.address, "echo", 1) == 1
        visitors = [threading.Thread(target=visit, args=[act]) for act, _ in STRANGERS.values()]
        for visitor in visitors:
            visitor.start()
        with Endpoint("client", 1, settings=settings, token=TOKEN, use_unix=False) as late:
            for visitor in visitors:
                visitor.join(DEADLINE_S)
                assert known.call(server.address, "echo", [2], timeout_s=DEADLINE_S) == [2]
                assert late.call(server.address, "echo", [3], timeout_s=DEADLINE_S) == [3]
        assert failures == []
        assert server.stats().refused_connections == len(STRANGERS)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(STRANGERS)  # each once
    for _, why in STRANGERS.values():
        expected = sum(reason == why for _, reason in STRANGERS.values())
        assert sum(why in line for line in lines) == expected, (why, lines)
    assert all("server-0 refused a connection from 127.0.0.1:" in line for line in lines)


def test_many_silent_strangers_keep_nobody_out(server: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    """The oldest of them go, so that an honest peer, who needs milliseconds, always finds room."""
    caplog.set_level(logging.WARNING, LOGGER)
    too_many = 30
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(server)) for _ in range(MAX_PENDING + too_many)]
        with Endpoint("client", 0, settings=server.settings, token=TOKEN, use_unix=False) as client:
            assert client.call(server.address, "echo", 1) == 1
        for sock in silent[:too_many]:
            assert until_closed(sock) == b""
        assert server.stats().refused_connections >= too_many
    assert 1 <= len(caplog.records) <= 10 + 1


def test_refusals_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    now = 100.0
    refusals = Refusals("server-0", lambda: now)
    for _ in range(1000):
        refusals.record("10.0.0.9:4242", "a name\nwith lines\x1b[2J")
    now += 60
    refusals.record("10.0.0.9:4243", "another")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "server-0 refused a connection from 10.0.0.9:4242: a name?with lines?[2J"
    assert len(lines) == 12
    assert lines[10] == "server-0 refused 990 more connections"
    assert refusals.count == 1001


def test_a_unix_socket_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says who is there."""
    with Endpoint("server", 0, listen_host=None, token=TOKEN) as server:
        monkeypatch.setattr(links, "same_user", lambda sock: False)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(DEADLINE_S)
            sock.connect("\0" + server.address.unix)
            assert until_closed(sock) == b""
        assert server.stats().refused_connections == 1
        with Endpoint("client", 0, listen_host=None, token=TOKEN) as client:
            with pytest.raises(AuthenticationError, match="another user"):
                client.call(server.address, "echo", 1)


# --- what the proof covers -----------------------------------------------------------------------------------------


def meta_of(frame: bytes) -> list[Any]:
    header = gld1.parse_header(frame, max_payload=0)
    return gld1.split_head(frame[gld1.HEADER_BYTES : gld1.HEADER_BYTES + header.head_len])[0]


def shake_hands(alter: Callable[[list[Any]], None], step: Kind) -> None:
    """A whole handshake, with the frame of one step altered by somebody on the way."""
    accepting = Handshake(introduction("server-0"), TOKEN, connecting=False)
    sides = (Handshake(introduction(), TOKEN, connecting=True), accepting)
    frame: bytes | None = sides[0].hello()
    receiver = 1
    while frame is not None:
        kind, meta = gld1.parse_header(frame, max_payload=0).kind, meta_of(frame)
        if kind == step:
            alter(meta)
        frame = sides[receiver].receive(kind, meta)
        receiver = 1 - receiver
    assert all(side.complete for side in sides)


FIELDS = ["name", "role", "rank", "incarnation", "pid", "host", "boot_id", "max_payload_bytes", "max_inflight"]
FIELDS += ["answers_queries"]


def test_nothing_of_an_introduction_can_be_altered_on_the_way() -> None:
    shake_hands(lambda meta: None, Kind.HELLO)
    for step in (Kind.HELLO, Kind.CHALLENGE):
        for index, field in enumerate(FIELDS):

            def alter(meta: list[Any], index: int = index) -> None:
                value = meta[0][index]
                more = 1 if isinstance(value, int) else "x"
                meta[0][index] = not value if isinstance(value, bool) else value + more

            with pytest.raises(AuthenticationError, match="token"):
                shake_hands(alter, step)
            assert len(introduction().to_fields()) == len(FIELDS), field

    def other_nonce(meta: list[Any]) -> None:
        meta[1] = bytes(16)

    for step in (Kind.HELLO, Kind.CHALLENGE):
        with pytest.raises(AuthenticationError, match="token"):
            shake_hands(other_nonce, step)


def test_a_recorded_handshake_is_of_no_use_again() -> None:
    connecting = Handshake(introduction(), TOKEN, connecting=True)
    first = Handshake(introduction("server-0"), TOKEN, connecting=False)
    hello = connecting.hello()
    auth = connecting.receive(Kind.CHALLENGE, meta_of(first.receive(Kind.HELLO, meta_of(hello)) or b""))
    assert first.receive(Kind.AUTH, meta_of(auth or b"")) is not None
    second = Handshake(introduction("server-0"), TOKEN, connecting=False)
    second.receive(Kind.HELLO, meta_of(hello))
    with pytest.raises(AuthenticationError, match="token"):
        second.receive(Kind.AUTH, meta_of(auth or b""))


def test_an_introduction_out_of_bounds() -> None:
    fields = introduction().to_fields()
    wrong_type = [*fields[:2], True, *fields[3:]]
    for changed in (fields[:-1], [*fields, 1], ["x" * 300, *fields[1:]], [*fields[:-1], 0], wrong_type):
        with pytest.raises(ProtocolError, match="introduction"):
            Introduction.from_fields(changed)


# --- who listens where ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_no_token_no_listener_for_others(host: str) -> None:
    with pytest.raises(InvalidArgumentError, match="needs a token"):
        Endpoint("server", 0, listen_host=host).open()


def test_the_default_is_this_host() -> None:
    with Endpoint("server", 0) as server:
        assert server.address.host == "127.0.0.1"


def test_the_token_of_a_job(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.write_bytes(b" secret\n")
    file.chmod(0o640)
    assert job_token({}) is None
    assert job_token({"GLD_TOKEN": "abc"}) == b"abc"
    assert job_token({"GLD_TOKEN": "abc", "GLD_TOKEN_FILE": str(file)}) == b"secret"
    assert not caplog.records
    file.chmod(0o604)
    assert job_token({"GLD_TOKEN_FILE": str(file)}) == b"secret"
    assert f"every user of this host may read {file} (mode 604)" in caplog.text
    for unfit in ("a\nb", "\xe9"):
        with pytest.raises(InvalidArgumentError, match="one line"):
            job_token({"GLD_TOKEN": unfit})
    assert job_token({"GLD_TOKEN": "x" * 4096}) == b"x" * 4096
    with pytest.raises(InvalidArgumentError, match="at most 4096 bytes, got 4097"):
        job_token({"GLD_TOKEN": "x" * 4097})
    file.write_bytes(b"\n")
    for path in (file, tmp_path / "missing"):  # an error: without a token anybody on this host would be let in
        with pytest.raises(InvalidArgumentError, match="GLD_TOKEN_FILE"):
            job_token({"GLD_TOKEN_FILE": str(path)})


# --- shared memory -------------------------------------------------------------------------------------------------


def check_private(path: str) -> None:
    """Mode 0600, no name in any file system, and of one size for ever."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600
        assert os.readlink(path).startswith("/memfd:")
        for size in (0, 1 << 30):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def test_shared_memory_is_private_sealed_and_unguessable() -> None:
    first, second = SendingArena(1 << 16), SendingArena(1 << 16)
    try:
        assert first.nonce != second.nonce
        check_private(first.path)
    finally:
        first.close()
        second.close()
    ring = _C.ShmRing(1 << 16, 4)
    check_private(ring.path)
    tensor = shared_memory.share(torch.arange(100))
    check_private(shared_memory.to_handle(tensor).path)

"""Two endpoints in one process: requests, errors, deadlines, strangers, tokens, the arena."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import socket
import struct
import threading
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import pytest
import torch

from graphlearn_dist.config import RpcSettings
from graphlearn_dist.errors import (
    AuthenticationError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotInitializedError,
    OverloadedError,
    PeerLostError,
    ProtocolError,
    RegistryError,
    RemoteError,
    UnknownIdError,
    VersionMismatchError,
)
from graphlearn_dist.rpc import Encoded, Endpoint, PeerAddress, current_peer, encode
from graphlearn_dist.rpc.calls import callees
from graphlearn_dist.rpc.connection import Connection
from graphlearn_dist.rpc.wire import gld1
from graphlearn_dist.rpc.wire.encoded import split_blob
from tests.faults.proxy import Proxy
from tests.support.waiting import collect, wait_until

pytestmark = pytest.mark.usefixtures("engines")

DEADLINE_S = 60.0  # only ever reached by a hang
SETTINGS = RpcSettings(connect_timeout_s=20.0, request_timeout_s=DEADLINE_S)


class Service:
    """Callees of the tests."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.started = threading.Event()
        self.cancelled = threading.Event()

    def register(self, endpoint: Endpoint) -> None:
        for name in ("echo", "fail", "fail_with_own_error", "block", "hang", "who", "unencodable"):
            endpoint.register(name, getattr(self, name))

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return [list(args), kwargs] if kwargs or len(args) != 1 else args[0]

    def fail(self) -> None:
        raise KeyError("no such thing")

    async def fail_with_own_error(self) -> None:
        raise UnknownIdError("id 7 is not in 0..6")

    def block(self) -> str:
        self.started.set()
        assert self.release.wait(DEADLINE_S)
        return "released"

    async def hang(self) -> None:
        self.started.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def who(self) -> Any:
        return current_peer()

    def unencodable(self) -> object:
        return object()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.release.set()


@pytest.fixture
def server(service: Service) -> Iterator[Endpoint]:
    with Endpoint("server", 0, settings=SETTINGS) as endpoint:
        service.register(endpoint)
        yield endpoint


@pytest.fixture
def client(server: Endpoint) -> Iterator[Endpoint]:
    with Endpoint("client", 3, settings=SETTINGS) as endpoint:
        yield endpoint


@pytest.mark.parametrize("use_unix", [True, False])
def test_requests_over_both_kinds_of_sockets(server: Endpoint, use_unix: bool) -> None:
    with Endpoint("client", 0, settings=SETTINGS, use_unix=use_unix) as client:
        tensors = [torch.arange(n, dtype=torch.int32) for n in (0, 1, 1000, 3_000_000)]
        for tensor in tensors:
            assert torch.equal(client.call(server.address, "echo", tensor), tensor)
        assert client.call("server-0", "echo", 1, b=(2, None)) == [[1], {"b": (2, None)}]
        futures = [client.request("server-0", "echo", i) for i in range(300)]
        assert [future.result(DEADLINE_S) for future in futures] == list(range(300))
        assert client.stats().unix_connections == int(use_unix)


def test_requests_in_both_directions_over_one_connection(server: Endpoint, client: Endpoint) -> None:
    client.register("double", lambda x: 2 * x)
    assert client.call(server.address, "echo", 1) == 1
    assert server.call("client-3", "double", 4) == 8
    assert server.stats().connections == client.stats().connections == 1


def test_the_callee_knows_its_caller(server: Endpoint, client: Endpoint) -> None:
    assert client.call(server.address, "who") == client.peer
    with pytest.raises(InvalidArgumentError, match="inside a callee"):
        current_peer()


def test_remote_errors(server: Endpoint, client: Endpoint) -> None:
    with pytest.raises(RemoteError) as caught:
        client.call(server.address, "fail")
    assert caught.value.type_name == "KeyError"
    assert "no such thing" in caught.value.message
    assert "in fail" in caught.value.traceback
    assert caught.value.peer == "server-0"
    with pytest.raises(UnknownIdError, match="id 7") as own:
        client.call(server.address, "fail_with_own_error")
    assert isinstance(own.value.__cause__, RemoteError)
    assert "fail_with_own_error" in own.value.__cause__.traceback
    with pytest.raises(InvalidArgumentError, match="'nothing' is not registered on server-0"):
        client.call(server.address, "nothing")
    with pytest.raises(InvalidArgumentError, match="cannot travel"):
        client.call(server.address, "unencodable")
    assert client.call(server.address, "echo", "still here") == "still here"


def test_deadline(server: Endpoint, client: Endpoint, service: Service) -> None:
    with pytest.raises(DeadlineExceededError, match=r"hang: no answer from .* within 0\.3 s"):
        client.call(server.address, "hang", timeout_s=0.3)
    assert service.cancelled.wait(DEADLINE_S)
    with pytest.raises(DeadlineExceededError):
        client.call(server.address, "block", timeout_s=0.3)
    service.release.set()
    assert client.call(server.address, "echo", 5) == 5  # the late answer goes nowhere
    with pytest.raises(InvalidArgumentError, match="timeout_s"):
        client.call(server.address, "echo", timeout_s=0)


def test_a_nested_request_inherits_the_deadline(server: Endpoint, client: Endpoint, service: Service) -> None:
    is_over = threading.Event()

    def nested() -> str:
        try:
            server.call("client-3", "never", timeout_s=DEADLINE_S)
        except DeadlineExceededError:
            service.started.set()
        is_over.wait(DEADLINE_S)  # its deadline is the caller's: the answer must not be faster than the caller's clock
        return "over"

    never = asyncio.Event()
    client.register("never", never.wait)
    server.register("nested", nested)
    with pytest.raises(DeadlineExceededError):
        client.call(server.address, "nested", timeout_s=2.0)  # enough for the nested one to begin
    assert service.started.wait(DEADLINE_S / 2)
    is_over.set()


def test_cancellation(server: Endpoint, client: Endpoint, service: Service) -> None:
    future = client.request(server.address, "hang")
    assert service.started.wait(DEADLINE_S)
    assert future.cancel()
    assert service.cancelled.wait(DEADLINE_S)
    with pytest.raises(CancelledError):
        future.result(0)


def test_a_request_waiting_behind_others_is_never_started_once_cancelled(service: Service) -> None:
    settings = replace(SETTINGS, num_threads=1)
    calls: list[int] = []
    with Endpoint("server", 0, settings=settings) as server, Endpoint("client", 0, settings=settings) as client:
        service.register(server)
        server.register("note", lambda x: calls.append(x))
        blocked = client.request(server.address, "block")
        assert service.started.wait(DEADLINE_S)
        doomed = client.request(server.address, "note", 1)
        client.call(server.address, "who")  # the requests before this one have arrived
        doomed.cancel()
        client.call(server.address, "who")
        service.release.set()
        assert blocked.result(DEADLINE_S) == "released"
        client.call(server.address, "note", 2)
    assert calls == [2]


def test_no_more_in_flight_than_granted(service: Service) -> None:
    settings = replace(SETTINGS, max_inflight=4)
    running, most = 0, 0

    async def count() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    with Endpoint("server", 0, settings=settings) as server, Endpoint("client", 0, settings=SETTINGS) as client:
        server.register("count", count)
        for future in [client.request(server.address, "count") for _ in range(30)]:
            future.result(DEADLINE_S)
    assert most == 4


def test_overload(service: Service) -> None:
    """A peer that sends more than it was granted is refused, and its connection stays."""
    settings = replace(SETTINGS, max_inflight=1)
    with Endpoint("server", 0, settings=settings) as server, Endpoint("client", 0, settings=SETTINGS) as client:

        async def stubborn() -> None:
            service.started.set()
            await asyncio.get_running_loop().create_future()

        server.register("stubborn", stubborn)
        future = client.request(server.address, "stubborn")
        assert service.started.wait(DEADLINE_S)
        future.cancel()

        async def flood() -> None:  # more than was granted, as a peer with a defect would send
            connection = client._links.find(server.address)
            assert connection is not None
            for index in range(4):
                head = gld1.pack_head(["stubborn", 0], encode([[], {}]).head)
                connection._stream.send(gld1.pack_frame(gld1.Kind.REQUEST, 1001 + 2 * index, head))
            connection._next_id = 2001

        asyncio.run_coroutine_threadsafe(flood(), client.loop).result(DEADLINE_S)
        with pytest.raises(OverloadedError, match="server-0"):
            client.call(server.address, "echo", 1)


@contextlib.contextmanager
def put_aside(server: Endpoint, *requests: bytes) -> Iterator[tuple[Connection, threading.Event]]:
    """A connection of the server's that has put these requests aside, and what lets go what it has to send.

    What queries are answered with fills the socket without the connection's doing.
    """
    may_ask, may_read = threading.Event(), threading.Event()
    slow = replace(SETTINGS, engine="python")  # reads on its loop alone
    with Endpoint("client", 0, settings=slow) as client:
        client.call(server.address, "echo", 1)
        here, (there,) = client._links.find(server.address), server._links.connections
        assert here is not None
        for step in (may_ask.wait, lambda: here._stream.send(b"".join(requests)), may_read.wait):
            client.loop.call_soon_threadsafe(step)
        large = encode(torch.zeros(200 << 20, dtype=torch.uint8))
        head = gld1.pack_head(["nobody listens", 0], large.head)
        event = gld1.pack_frame(gld1.Kind.EVENT, 0, head, payload_len=large.nbytes)
        server.loop.call_soon_threadsafe(there._stream.send, event, large.payload_parts())
        try:
            wait_until(lambda: there._stream.out_bytes > 64 << 20)
            may_ask.set()
            wait_until(lambda: len(there._parked) == len(requests) or not there.is_open)
            yield there, may_read
        finally:
            may_ask.set()
            may_read.set()
    wait_until(lambda: not server._links.connections)


@pytest.fixture
def noted() -> list[str]:
    """What ``note`` was called with."""
    return []


@pytest.fixture
def noting(noted: list[str]) -> Iterator[Endpoint]:
    """A server with ``note``, and ``echo``."""

    async def note(what: str) -> None:
        noted.append(what)

    with Endpoint("server", 0, settings=SETTINGS) as server:
        server.register("note", note)
        server.register("echo", lambda x: x)
        yield server


def note(request_id: int, what: str, deadline_ms: int = 0) -> bytes:
    """A request."""
    head = gld1.pack_head(["note", 0], encode([[what], {}]).head)
    return gld1.pack_frame(gld1.Kind.REQUEST, request_id, head, deadline_ms=deadline_ms)


def test_requests_behind_much_that_waits_are_served_in_their_order(noting: Endpoint, noted: list[str]) -> None:
    requests = [note(1001 + 2 * index, str(index)) for index in range(20)]
    with put_aside(noting, *requests) as (_, may_read):
        assert noted == []
        may_read.set()
        wait_until(lambda: len(noted) == 20)
    assert noted == [str(index) for index in range(20)]


def test_a_request_that_cannot_be_begun_keeps_no_others_waiting(
    noting: Endpoint, noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is nobody's is told by the loop; without memory the connection is given up, as for any request."""
    begin = callees._arguments

    def begin_or_fail(value: Any) -> Any:
        given = begin(value)
        if given[0][:1] == ["defect"]:
            raise ValueError("a defect")
        if given[0][:1] == ["memory"]:
            raise MemoryError
        return given

    monkeypatch.setattr(callees, "_arguments", begin_or_fail)
    told: list[str] = []
    noting.loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
    with put_aside(noting, note(1001, "defect"), note(1003, "b")) as (_, may_read):
        may_read.set()
        wait_until(lambda: noted == ["b"])
    assert told == ["a defect"]
    with put_aside(noting, note(1001, "memory"), note(1003, "c")) as (there, may_read):
        may_read.set()
        wait_until(lambda: not there.is_open)
    assert noted == ["b"]


def test_what_was_put_aside_is_a_request_like_others(noting: Endpoint, noted: list[str]) -> None:
    """One number twice breaks the protocol; whose caller has given up is not begun."""
    with put_aside(noting, note(1001, "a"), note(1001, "b")) as (there, _):
        assert not there.is_open
    with put_aside(noting, note(1001, "late", 1), note(1003, "in time", 60_000)) as (there, may_read):
        due = there._parked[1001][2]
        wait_until(lambda: noting.loop.time() > due)
        may_read.set()
        wait_until(lambda: noted == ["in time"])


def test_connection_refused(client: Endpoint) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = PeerAddress("127.0.0.1", unused.getsockname()[1])
        with pytest.raises(PeerLostError, match="no connection"):
            client.call(address, "echo", 1, fail_fast=True)
    with pytest.raises(RegistryError, match="join a registry"):
        client.call("server-9", "echo")


def test_closing(server: Endpoint, client: Endpoint, service: Service) -> None:
    lost: list[Any] = []
    seen = threading.Event()

    def on_lost(peer: Any, why: str) -> None:
        lost.append((peer, why))
        seen.set()

    client.on_peer_lost(on_lost)
    future = client.request(server.address, "hang")
    assert service.started.wait(DEADLINE_S)
    server.close()
    server.close()
    with pytest.raises(PeerLostError, match="server-0"):
        future.result(DEADLINE_S)
    assert seen.wait(DEADLINE_S)
    assert lost[0][0].name == "server-0"
    client.close()
    with pytest.raises(NotInitializedError):
        client.call(server.address, "echo", 1)
    with pytest.raises(NotInitializedError):
        client.open()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for use in (lambda: client.connect(server.address, 1.0), client.stats, client.host_registry):
            with pytest.raises(NotInitializedError, match="is not open"):
                use()
        collect()
    assert not warned  # of coroutines that nobody awaits


def test_an_answer_is_delivered_before_the_endpoint_closes(client: Endpoint) -> None:
    closed = threading.Event()
    with Endpoint("server", 1, settings=SETTINGS, use_unix=False) as server:

        def close() -> None:
            server.close()
            closed.set()

        async def last_words() -> torch.Tensor:
            closing = threading.Thread(target=close)
            server.loop.call_soon(closing.start)  # after this step, which ends with the answer being queued
            return torch.ones(5_000_000)

        server.register("last_words", last_words)
        assert client.call(server.address, "last_words").sum() == 5_000_000
        assert closed.wait(DEADLINE_S)


def test_a_running_function_answers_before_the_endpoint_closes(
    client: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the one that tells a server to end."""
    monkeypatch.setattr("graphlearn_dist.rpc.endpoint._FLUSH_TIMEOUT_S", DEADLINE_S)
    server = Endpoint("server", 1, settings=SETTINGS).open()
    closing = threading.Thread(target=server.close)

    def last_words() -> str:
        closing.start()
        closing.join(0.2)  # time enough for what must not happen
        return "so long"

    server.register("last_words", last_words)
    assert client.call(server.address, "last_words") == "so long"
    closing.join(DEADLINE_S)
    assert not closing.is_alive()


def test_blocking_calls_on_the_loop_are_refused(server: Endpoint, client: Endpoint) -> None:
    async def wrong() -> Any:
        return server.call("client-3", "echo", 1)

    server.register("wrong", wrong)
    with pytest.raises(InvalidArgumentError, match="would block"):
        client.call(server.address, "wrong")


def test_nothing_is_left_open() -> None:
    def descriptors() -> int:
        collect()
        return len(os.listdir("/proc/self/fd"))

    def once() -> None:
        with Endpoint("server", 0, settings=SETTINGS) as server, Endpoint("client", 0, settings=SETTINGS) as client:
            server.register("echo", lambda x: x)
            for _ in range(3):
                client.call(server.address, "echo", torch.ones(100_000))

    once()
    before = descriptors()
    once()
    assert descriptors() == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rpc-")]


# --- tokens and strangers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mine", "theirs"), [(b"right", b"wrong"), (b"right", None), (None, b"right")])
def test_wrong_or_missing_token(mine: bytes | None, theirs: bytes | None) -> None:
    with Endpoint("server", 0, settings=SETTINGS, token=mine) as server:
        server.register("echo", lambda x: x)
        with Endpoint("client", 0, settings=SETTINGS, token=theirs) as client:
            with pytest.raises(AuthenticationError, match="token"):
                client.call(server.address, "echo", 1)
        assert server.stats().requests_served == 0
        with Endpoint("client", 0, settings=SETTINGS, token=mine) as client:
            assert client.call(server.address, "echo", 1) == 1


def test_an_open_listener_needs_a_token() -> None:
    with pytest.raises(InvalidArgumentError, match="token"):
        Endpoint("server", 0, listen_host="0.0.0.0").open()
    with Endpoint("server", 0, listen_host="0.0.0.0", token=b"secret") as server:
        assert server.address.port > 0
    with Endpoint("server", 0, settings=SETTINGS) as server:
        with pytest.raises(InvalidArgumentError, match="token"):
            server.join("0.0.0.0", 0, host_registry=True)


def exchange(port: int, data: bytes) -> bytes:
    """What the endpoint answers to some bytes, until it closes."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sock:
        try:
            sock.sendall(data)
            while chunk := sock.recv(65536):
                received += chunk
        except ConnectionResetError:  # it closed while there was more to read
            return received
    return received


STRANGERS = {
    "http": b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
    "zeros": bytes(100_000),
    "random": bytes(os.urandom(1 << 20)),
    "large head": gld1._HEADER.pack(b"GLD1", 1, 1, 0, 0, 1 << 20, 0, 0) + bytes(2000),
    "large payload": gld1._HEADER.pack(b"GLD1", 1, 1, 0, 0, 8, 0, 1 << 40) + bytes(2000),
    "unknown kind": gld1._HEADER.pack(b"GLD1", 1, 99, 0, 0, 8, 0, 0) + bytes(64),
    "request before the handshake": gld1.pack_frame(gld1.Kind.REQUEST, 1, gld1.pack_head(["echo", 0])),
    "bad hello": gld1.pack_frame(gld1.Kind.HELLO, 0, gld1.pack_head(["x", 1])),
    "hello with a list for a name": gld1.pack_frame(gld1.Kind.HELLO, 0, gld1.pack_head([[[]] * 9, bytes(16)])),
    "hello that is no msgpack": gld1.pack_frame(gld1.Kind.HELLO, 0, b"\xff\xff" + bytes(100)),
    "welcome at once": gld1.pack_frame(gld1.Kind.WELCOME, 0, gld1.pack_head([])),
    "auth at once": gld1.pack_frame(gld1.Kind.AUTH, 0, gld1.pack_head([b""])),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_strangers_bytes_are_harmless(server: Endpoint, client: Endpoint, stranger: str) -> None:
    answer = exchange(server.address.port, STRANGERS[stranger])
    assert answer == b"" or answer[:4] == b"GLD1"
    assert client.call(server.address, "echo", 1) == 1
    assert server.stats().connections == 1


def test_another_version_is_told_so(server: Endpoint) -> None:
    hello = bytearray(gld1.pack_frame(gld1.Kind.HELLO, 0, gld1.pack_head([])))
    hello[4] = 2
    answer = exchange(server.address.port, bytes(hello))
    header = gld1.parse_header(answer, max_payload=0)
    error = gld1.read_refusal(answer[gld1.HEADER_BYTES : gld1.HEADER_BYTES + header.head_len], "server")
    assert isinstance(error, VersionMismatchError)
    assert "version 2" in str(error)
    assert "speaks 1" in str(error)


@pytest.mark.parametrize(
    ("reply", "expected", "num_tries"),
    [
        (gld1.pack_refusal(VersionMismatchError("speaks 7")), VersionMismatchError, 1),
        (struct.pack("<4sBBHQIIQ", b"GLD1", 7, 1, 0, 0, 0, 0, 0) + bytes(32), VersionMismatchError, 1),
        (gld1.pack_refusal(ProtocolError("no")), ProtocolError, 2),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64), ProtocolError, 2),
    ],
)
def test_connecting_to_something_else(
    client: Endpoint, reply: bytes, expected: type[Exception], num_tries: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(num_tries):
                sock, _ = listener.accept()
                with sock:
                    sock.recv(4096)
                    sock.sendall(reply)
                    sock.settimeout(DEADLINE_S)
                    while sock.recv(4096):
                        pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(expected):
            client.call(PeerAddress("127.0.0.1", listener.getsockname()[1]), "echo", 1)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("fail_fast", [False, True], ids=["patient", "fail fast"])
@pytest.mark.parametrize("seed", [0, 1])
def test_noise_in_a_handshake_is_no_reason_to_give_up(
    server: Endpoint, client: Endpoint, seed: int, fail_fast: bool
) -> None:
    with contextlib.closing(Proxy()) as proxy:
        port = proxy.open(lambda: ("127.0.0.1", server.address.port))
        proxy.garble(random.Random(seed))  # a header, and a head
        assert client.call(PeerAddress("127.0.0.1", port), "echo", 1, fail_fast=fail_fast) == 1
    assert server.stats().refused_connections == 1


def test_garbage_after_the_handshake_closes_only_that_connection(server: Endpoint, client: Endpoint) -> None:
    assert client.call(server.address, "echo", 1) == 1

    async def garbage() -> None:
        connection = client._links.find(server.address)
        assert connection is not None
        ping = gld1.pack_frame(gld1.Kind.PING, 0, gld1.pack_head([]))  # what this side sends, it counts by its header
        connection._stream.send(ping, [memoryview(b"garbage " * 10)])

    lost = threading.Event()
    client.on_peer_lost(lambda peer, why: lost.set())
    asyncio.run_coroutine_threadsafe(garbage(), client.loop).result(DEADLINE_S)
    assert lost.wait(DEADLINE_S)
    assert client.call(server.address, "echo", 2) == 2


# --- the arena and forwarding ----------------------------------------------------------------------------------


def test_the_arena_is_used_and_given_back(server: Endpoint, client: Endpoint) -> None:
    tensor = torch.arange(100_000)
    kept = [client.call(server.address, "echo", tensor) for _ in range(20)]
    assert client.stats().arena_payloads_sent >= 18
    assert server.stats().arena_payloads_sent >= 18
    assert server.stats().arena_payloads_received == client.stats().arena_payloads_sent
    assert all(torch.equal(old, tensor) for old in kept)
    wait_until(lambda: client.stats().arena_used_bytes == 0)  # slots are given back beside calls
    assert len({old.data_ptr() for old in kept}) == len(kept)


def test_kept_tensors_do_not_block_a_small_arena() -> None:
    """Sixty answers of 800 KB through an arena of two MB, all of them kept."""
    settings = replace(SETTINGS, arena_bytes=2 << 20)
    with Endpoint("server", 0, settings=settings) as server, Endpoint("client", 0, settings=settings) as client:
        server.register("make", lambda i: torch.full((100_000,), i))
        kept = [client.call(server.address, "make", i) for i in range(60)]
        assert all((old == i).all() for i, old in enumerate(kept))
        assert server.stats().arena_payloads_sent >= 55


def test_a_full_arena_means_inline() -> None:
    settings = replace(SETTINGS, arena_bytes=1 << 20)
    with Endpoint("server", 0, settings=settings) as server, Endpoint("client", 0, settings=settings) as client:
        server.register("make", lambda i, n: torch.full((n,), i))
        client.call(server.address, "make", 0, 50_000)
        for i in range(4):
            assert (client.call(server.address, "make", i, 200_000) == i).all()  # 1.6 MB never fit
        assert server.stats().arena_full >= 3
        assert (client.call(server.address, "make", 9, 50_000) == 9).all()
        assert server.stats().arena_payloads_sent >= 1


def test_an_answers_memory_is_free_once_it_is_dropped(server: Endpoint, client: Endpoint) -> None:
    """Without the help of the garbage collector: waiting for it means fresh memory for every answer."""
    collect()
    gc.disable()
    try:
        answers = [weakref.ref(client.call(server.address, "echo", torch.ones(n))) for n in (10, 1_000_000)]
        client.call(server.address, "echo", 1)  # the loop is done with the answers before
        assert [answer() for answer in answers] == [None, None]
    finally:
        gc.enable()


def test_without_an_arena() -> None:
    settings = replace(SETTINGS, arena_bytes=0)
    with Endpoint("server", 0, settings=settings) as server, Endpoint("client", 0, settings=settings) as client:
        server.register("echo", lambda x: x)
        for _ in range(3):
            assert client.call(server.address, "echo", torch.ones(100_000)).sum() == 100_000
        assert client.stats().arena_payloads_sent == server.stats().arena_payloads_sent == 0


@pytest.mark.parametrize("size", [0, 10, 1_000_000])
@pytest.mark.parametrize("use_unix", [True, False])
def test_an_encoded_answer_is_forwarded_and_released_once(size: int, use_unix: bool) -> None:
    """A callee passes on a blob, as a server does with a message of its workers, without decoding it."""
    released: list[int] = []
    all_released = threading.Event()
    rounds = 4

    def on_released() -> None:
        released.append(1)
        if len(released) == rounds:
            all_released.set()

    def forward() -> Encoded:
        blob = bytearray(b"".join(encode({"x": torch.arange(size), "name": "n"}).write_parts()))
        head, payload = split_blob(blob)
        return Encoded(bytes(head), (payload,) if payload.nbytes else (), payload.nbytes, on_released)

    with Endpoint("server", 0, settings=SETTINGS) as server:
        server.register("forward", forward)
        with Endpoint("client", 0, settings=SETTINGS, use_unix=use_unix) as client:
            for _ in range(rounds):
                answer = client.call(server.address, "forward")
                assert answer["name"] == "n"
                assert torch.equal(answer["x"], torch.arange(size))
            assert all_released.wait(DEADLINE_S)
    assert len(released) == rounds


def test_an_encoded_answer_that_nobody_waits_for_is_released(server: Endpoint, client: Endpoint) -> None:
    started, go, released = threading.Event(), threading.Event(), threading.Event()

    def slow() -> Encoded:
        started.set()
        assert go.wait(DEADLINE_S)
        return encode(torch.ones(10), released.set)

    server.register("slow", slow)
    future = client.request(server.address, "slow")
    assert started.wait(DEADLINE_S)
    future.cancel()
    client.call(server.address, "echo", 1)
    go.set()
    assert released.wait(DEADLINE_S)


def test_heartbeats_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLD_HEARTBEAT_TIMEOUT", raising=False)
    assert (RpcSettings().heartbeat_interval_s, RpcSettings().heartbeat_timeout_s) == (1.0, 3.0)
    monkeypatch.setenv("GLD_HEARTBEAT_TIMEOUT", "12")
    assert (RpcSettings().heartbeat_interval_s, RpcSettings().heartbeat_timeout_s) == (4.0, 12.0)
    assert RpcSettings(heartbeat_timeout_s=5.0).heartbeat_timeout_s == 5.0
    for text, message in (
        ("soon", "GLD_HEARTBEAT_TIMEOUT: expected a number of seconds, got 'soon'"),
        ("-1", "positive"),
    ):
        monkeypatch.setenv("GLD_HEARTBEAT_TIMEOUT", text)
        with pytest.raises(InvalidArgumentError, match=message):
            RpcSettings()

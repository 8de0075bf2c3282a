"""Both engines, without endpoints: the same bytes give the same frames and the same refusals, however they are cut."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from graphlearn_dist._C import RpcEngine
from graphlearn_dist.config import RpcSettings, rpc_engine, unix_sockets
from graphlearn_dist.errors import InvalidArgumentError, PeerLostError, ProtocolError, RpcError
from graphlearn_dist.rpc import Endpoint, encode
from graphlearn_dist.rpc.engine.engines import Engine, PythonEngine, open_engine
from graphlearn_dist.rpc.engine.native import NativeEngine
from graphlearn_dist.rpc.traffic import FRAME_USES
from graphlearn_dist.rpc.wire import gld1
from graphlearn_dist.rpc.wire.gld1 import Header, Kind
from tests.support.waiting import wait_until

DEADLINE_S = 60.0
NAMES = ("native", "python")
MAX_PAYLOAD = 1 << 20


def request(request_id: int, value: Any) -> bytes:
    """A request as it travels inline."""
    encoded = encode(value)
    head = gld1.pack_head(["name", 0], encoded.head)
    frame = gld1.pack_frame(Kind.REQUEST, request_id, head, deadline_ms=70, payload_len=encoded.nbytes)
    return frame + b"".join(encoded.payload_parts())


HELLO = gld1.pack_frame(Kind.HELLO, 0, gld1.pack_head(["hello"]))
PING = gld1.pack_frame(Kind.PING, 0, gld1.pack_head([]))
STREAM = b"".join(
    [
        request(1, [[], {}]),
        request(3, torch.arange(3)),
        PING,
        request(5, [torch.arange(100_000, dtype=torch.int32), "text"]),
        gld1.pack_frame(Kind.RESPONSE, 4, gld1.pack_head([4096]), flags=gld1.FLAG_ARENA, payload_len=70_000),
        request(7, {"x": torch.ones(700)}),
        gld1.pack_frame(Kind.CANCEL, 5, gld1.pack_head([])),
        request(9, ["y" * 60_000, torch.ones(5_000)]),
        gld1.pack_frame(Kind.ERROR, 2, b""),
        gld1.pack_frame(Kind.PONG, 0, gld1.pack_head([])),
        gld1.pack_frame(Kind.EVENT, 0, gld1.pack_head(["topic", 0], encode(None).head)),
    ]
)


@dataclass
class Received:
    """What one stream handed out until it closed."""

    frames: list[tuple[Header, bytes, bytes]] = field(default_factory=list)
    error: RpcError | None = None
    answer: bytes = b""
    traffic: Any = None

    def same(self, other: Received) -> bool:
        """The same frames, refusal and end."""
        return (self.frames, type(self.error), str(self.error), self.answer) == (
            other.frames,
            type(other.error),
            str(other.error),
            other.answer,
        )


def on_loop(name: str, work: Callable[[Engine], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine with an engine."""

    async def main() -> None:
        settings = RpcSettings(max_payload_bytes=MAX_PAYLOAD, heartbeat_timeout_s=60)
        engine = open_engine(name, asyncio.get_running_loop(), settings, "this side")
        try:
            await asyncio.wait_for(work(engine), DEADLINE_S)
        finally:
            engine.close()

    asyncio.run(main())


def feed(name: str, pieces: list[bytes], *, known: bool = True) -> Received:
    """What an engine makes of some bytes, after a handshake or as the first it hears."""
    received = Received()

    async def work(engine: Engine) -> None:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        there.settimeout(DEADLINE_S)
        over, met = loop.create_future(), loop.create_future()

        def on_frame(header: Header, head: Any, payload: Any) -> None:
            if known and not met.done():
                stream.lift_limits()
                met.set_result(None)
            else:
                received.frames.append((header, bytes(head), bytes(payload) if payload is not None else b""))

        def on_closed(error: RpcError) -> None:
            received.error = error
            over.set_result(None)

        def peer() -> None:
            with contextlib.suppress(ConnectionError):  # it closes when it has read enough
                for piece in pieces:
                    there.sendall(piece)
                there.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):  # it closed while there was more to read
                while chunk := there.recv(65536):
                    received.answer += chunk

        stream = engine.attach(here, on_frame, on_closed)
        if known:
            there.sendall(HELLO)
            await met
        thread = threading.Thread(target=peer)
        thread.start()
        await over
        await asyncio.to_thread(thread.join, DEADLINE_S)
        there.close()
        came = stream.traffic[1]
        received.traffic = [list(came.on_socket), list(came.in_memory)]

    on_loop(name, work)
    return received


def cut(data: bytes, random_numbers: random.Random) -> list[bytes]:
    """The bytes in pieces of few or many bytes."""
    pieces = []
    while data:
        size = random_numbers.choice((1, 31, 33, 64, 4000, 40_000, 200_000))
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def test_recorded_bytes_give_equal_frames() -> None:
    expected = feed("python", [STREAM])
    assert [header.request_id for header, _, _ in expected.frames] == [1, 3, 5, 4, 7, 5, 9, 2, 0]
    assert expected.answer == gld1.pack_frame(Kind.PONG, 0, gld1.pack_head([]))
    assert str(expected.error) == "lost peer: connection closed"
    numbers = random.Random(1)
    for name in NAMES:
        for pieces in ([STREAM], cut(STREAM, numbers), cut(STREAM, numbers)):
            assert feed(name, pieces).same(expected), name


def with_field(offset: int, *values: int) -> bytes:
    """A request with some bytes of its header changed."""
    frame = bytearray(request(1, 5))
    frame[offset : offset + len(values)] = bytes(values)
    return bytes(frame)


MALFORMED = {
    "magic": with_field(0, 0x47, 0x4C, 0, 0x7F),
    "version": with_field(4, 3),
    "kind 0": with_field(5, 0),
    "kind 16": with_field(5, 16),
    "head of 65 537 bytes": with_field(16, 1, 0, 1, 0),
    "payload above the limit": with_field(24, 1, 0, 16),
    "payload of 2^63 bytes": with_field(31, 0x80),
    "an answer, then garbage": STREAM + b"garbage" * 50,
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_bytes_are_refused_in_the_same_words(case: str) -> None:
    python, native = feed("python", [MALFORMED[case]]), feed("native", [MALFORMED[case]])
    assert isinstance(python.error, ProtocolError)
    assert native.same(python)
    assert b"GLD1\1\7" in python.answer


def test_before_the_handshake_only_small_frames_come() -> None:
    allowed = gld1.pack_frame(Kind.HELLO, 0, bytes(gld1.MAX_UNAUTHENTICATED_BYTES))
    too_long = gld1.pack_frame(Kind.HELLO, 0, bytes(gld1.MAX_UNAUTHENTICATED_BYTES + 1))
    for data in (allowed + PING, allowed + too_long, request(1, torch.ones(9)), bytes(300)):
        python, native = (feed(name, [data], known=False) for name in ("python", "native"))
        assert native.same(python)
        assert (type(python.error) is PeerLostError) == (data == allowed + PING)
    assert len(python.frames) == 0


def test_mutated_bytes_end_the_same_way() -> None:
    """Bits flipped in headers: whatever comes of it, both engines agree on it."""
    numbers = random.Random(7)
    frames = [request(1, [[1], {}]), request(3, torch.ones(300)), PING]
    for _ in range(40):
        data = bytearray(b"".join(numbers.sample(frames, 3)))
        for _ in range(numbers.randint(1, 3)):
            data[numbers.randrange(gld1.HEADER_BYTES)] ^= 1 << numbers.randrange(8)
        assert feed("native", [bytes(data)]).same(feed("python", [bytes(data)])), data.hex()


@pytest.mark.parametrize("name", NAMES)
def test_a_handlers_defect_does_not_stop_the_others(name: str) -> None:
    """What a handler raises, other than an error of the RPC, is the loop's to report; other streams go on."""
    reported: list[BaseException] = []

    async def work(engine: Engine) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        pairs = [socket.socketpair() for _ in range(3)]
        heard = [loop.create_future() for _ in pairs]

        def attach(index: int) -> None:
            def on_frame(header: Header, head: Any, payload: Any) -> None:
                heard[index].set_result(None)
                if index == 0:
                    raise ZeroDivisionError

            engine.attach(pairs[index][0], on_frame, lambda error: None).lift_limits()

        for index, (_, there) in enumerate(pairs):
            there.sendall(request(1, 5))
            attach(index)
        await asyncio.gather(*heard)
        for _, there in pairs:
            there.close()

    on_loop(name, work)
    assert [type(error) for error in reported] == [ZeroDivisionError]


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_told_apart_by_what_they_are_for(name: str) -> None:
    on_socket, in_memory = feed(name, cut(STREAM, random.Random(3))).traffic
    by_use = dict(zip(FRAME_USES, on_socket, strict=True))
    assert sum(on_socket) == len(HELLO) + len(STREAM)
    assert by_use["answer"] == 2 * 64
    assert by_use["event"] == 64
    assert by_use["control"] == len(HELLO) + 3 * 64
    assert (by_use["query"], by_use["query answer"]) == (0, 0)
    assert dict(zip(FRAME_USES, in_memory, strict=True)) == dict.fromkeys(FRAME_USES, 0) | {"answer": 70_000}


@pytest.mark.parametrize("names", [("native", "native"), ("python", "python"), ("native", "python")], ids="-".join)
def test_what_one_side_sent_the_other_received(names: tuple[str, str]) -> None:
    """By what it is for; and the function that answered knows the bytes of its answers."""
    settings = [RpcSettings(engine=name) for name in names]
    with Endpoint("server", 0, settings=settings[0]) as server, Endpoint("client", 0, settings=settings[1]) as client:
        server.register("double", lambda values: values * 2)
        for count in (10, 100_000, 20):
            values = torch.arange(count)
            assert torch.equal(client.request(server.address, "double", values).result(DEADLINE_S), values * 2)
        [of_client], [of_server] = client.traffic.by_peer().values(), server.traffic.by_peer().values()
        sent, received = of_client.sent, of_client.received
        for there, back in ((sent, of_server.received), (of_server.sent, received)):
            for use in ("request", "answer", "query"):
                place = FRAME_USES.index(use)
                assert there.on_socket[place] == back.on_socket[place]
        assert sent.on_socket[FRAME_USES.index("request")] >= 800_000
        assert received.on_socket[FRAME_USES.index("answer")] >= 800_000

        def answered() -> tuple[float, ...]:
            shown = [metric for metric in server.traffic.metrics() if metric.labels.get("function") == "double"]
            found = {metric.name: metric.value for metric in shown}
            return found["calls_total"], found["answer_bytes_total"]

        wait_until(lambda: answered() == (3, 128 + 800_000 + 192))  # an answer is counted when it is on its way


@pytest.mark.parametrize("name", NAMES)
def test_refusals_are_counted(name: str) -> None:
    with Endpoint("server", 0, settings=RpcSettings(engine=name), token=b"secret") as server:
        for data in (b"GET / HTTP/1.1\r\n\r\n" + bytes(64), request(1, 5)):
            with socket.create_connection(("127.0.0.1", server.address.port), DEADLINE_S) as sock:
                sock.sendall(data)
                assert sock.recv(4) == b"GLD1"
        assert server.stats().refused_connections == 2


def test_heartbeats_go_on_while_python_is_busy() -> None:
    """The native engine answers pings, and sends its own, while its loop does nothing for longer than the limit."""
    settings = RpcSettings(heartbeat_interval_s=0.25, heartbeat_timeout_s=1.5, engine="native")
    entered = threading.Event()
    never = threading.Event()

    async def block() -> str:
        entered.set()
        never.wait(3.5)  # the loop's thread
        return "done"

    with Endpoint("server", 0, settings=settings) as server, Endpoint("client", 0, settings=settings) as client:
        server.register("block", block)
        future = client.request(server.address, "block")
        assert entered.wait(DEADLINE_S)
        assert future.result(DEADLINE_S) == "done"


def test_which_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [unix_sockets({}), unix_sockets({"GLD_UNIX_SOCKETS": "0"})] == [True, False]
    with pytest.raises(InvalidArgumentError, match="GLD_UNIX_SOCKETS: expected 0 or 1, got 'no'"):
        unix_sockets({"GLD_UNIX_SOCKETS": "no"})
    for value in ("0", "1"):
        monkeypatch.setenv("GLD_UNIX_SOCKETS", value)
        with Endpoint("server", 0) as server:
            assert bool(server.address.unix) == (value == "1")


def test_which_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [rpc_engine({}), rpc_engine({"GLD_RPC_ENGINE": "python"})] == ["native", "python"]
    with pytest.raises(InvalidArgumentError, match="GLD_RPC_ENGINE: expected one of"):
        rpc_engine({"GLD_RPC_ENGINE": "rust"})
    with pytest.raises(InvalidArgumentError, match="engine: expected one of"):
        RpcSettings(engine="rust")
    before = endpoint_threads()
    monkeypatch.setenv("GLD_RPC_ENGINE", "rust")
    with pytest.raises(InvalidArgumentError, match="GLD_RPC_ENGINE"):
        Endpoint("server", 0).open()
    assert endpoint_threads() == before
    monkeypatch.setenv("GLD_RPC_ENGINE", "python")
    for settings, kind in ((RpcSettings(), PythonEngine), (RpcSettings(engine="native"), NativeEngine)):
        with Endpoint("server", 0, settings=settings) as server:
            assert type(server.engine) is kind
    assert endpoint_threads() == before


def endpoint_threads() -> list[str]:
    """Threads of endpoints' loops in this process."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rpc-")]


def test_the_native_engine_takes_sockets_that_do_not_block() -> None:
    engine = RpcEngine(1.0, 5.0, MAX_PAYLOAD)
    try:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            with pytest.raises(InvalidArgumentError, match=f"fd: expected a non-blocking socket, got {ours.fileno()}"):
                engine.open(ours.fileno())
            theirs.sendall(b"it is still ours")
            assert ours.recv(100) == b"it is still ours"
        with pytest.raises(InvalidArgumentError, match="fd: expected an open socket, got -1"):
            engine.open(-1)
    finally:
        engine.close()

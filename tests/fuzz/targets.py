"""What must hold for whatever bytes arrive: ``check(data)`` raises where it does not.

The first byte chooses the target: the decoder of values, the decoder of stored values, a connection that a stranger
opens, a connection whose peer knows the token, one that this side opened and has requests on, and the handshake's
messages. The rest is what the decoder is given, or what the peer sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack
import torch

from graphlearn_dist.config import RpcSettings
from graphlearn_dist.errors import ProtocolError, RpcError
from graphlearn_dist.rpc import decode, decode_blob, encode, register_message
from graphlearn_dist.rpc.calls.call import Answer, Call
from graphlearn_dist.rpc.calls.callees import Callees, Serving
from graphlearn_dist.rpc.calls.deadlines import Deadlines
from graphlearn_dist.rpc.connection import Connection
from graphlearn_dist.rpc.engine.engines import PythonEngine
from graphlearn_dist.rpc.engine.framing import FrameStream
from graphlearn_dist.rpc.engine.loops import EndpointLoop
from graphlearn_dist.rpc.engine.threads import Posts
from graphlearn_dist.rpc.peers.handshake import Handshake, Introduction
from graphlearn_dist.rpc.peers.identity import Peer
from graphlearn_dist.rpc.shm.arena import SendingArena
from graphlearn_dist.rpc.wire import gld1
from graphlearn_dist.rpc.wire.codec import Value
from graphlearn_dist.rpc.wire.encoded import Encoded

TOKEN = b"token"
MAX_PAYLOAD = 1 << 20
MAX_INPUT = 48 << 10  # what fits into a socket pair's buffer
CALLS = 4
_LENGTH = struct.Struct("<H")


@register_message(name="fuzz.Checked")
@dataclass(frozen=True)
class Checked:
    """A message that looks at its fields, as those of the package do."""

    ids: Any
    size: Any = 0
    names: Any = ()

    def __post_init__(self) -> None:
        if self.ids.dim() != 1 or self.size + 1 < 0 or any(not name for name in self.names):
            raise ValueError("out of bounds")


# --- values --------------------------------------------------------------------------------------------------------


def value_input(encoded: Encoded) -> bytes:
    """The input of ``check_value`` that is an encoded value."""
    return _LENGTH.pack(len(encoded.head)) + encoded.head + b"".join(encoded.payload_parts())


def check_value(data: bytes) -> None:
    """A head and a payload: a value that can be encoded again, or ``ProtocolError``."""
    if len(data) < _LENGTH.size:
        return
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    payload = bytearray(data[end:])
    with contextlib.suppress(ProtocolError):
        value = decode(data[_LENGTH.size : end], payload or None)
        encode(value)


def check_blob(data: bytes) -> None:
    """A value as it is stored."""
    with contextlib.suppress(ProtocolError):
        decode_blob(bytearray(data))


# --- connections ---------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """What a connection asks of its endpoint: everything is real but the endpoint itself."""

    settings: RpcSettings
    engine: PythonEngine
    callees: Callees
    errors: list[RpcError] = field(default_factory=list)

    def sending_arena(self) -> SendingArena | None:
        return None

    def connection_opened(self, connection: Connection) -> None:
        return None

    def connection_closed(self, connection: Connection, error: RpcError) -> None:
        self.errors.append(error)

    def serve(self, connection: Connection, request_id: int, deadline_ms: int, function: str, value: Value) -> Serving:
        return self.callees.serve(connection, request_id, deadline_ms, function, value)

    def event(self, connection: Connection, topic: str, value: Any) -> None:
        return None


def introduction(name: str) -> Introduction:
    return Introduction(Peer(name, name, 0, 1, 1, "host"), "boot", MAX_PAYLOAD, 8)


def no_heartbeats() -> RpcSettings:
    day = 86_400.0
    return RpcSettings(
        heartbeat_interval_s=day, heartbeat_timeout_s=2 * day, max_payload_bytes=MAX_PAYLOAD, engine="python"
    )


class Harness:
    """A loop, an engine and callees, for as many connections as one likes, one after the other."""

    def __init__(self) -> None:
        self.defects: list[BaseException] = []
        self._loop = EndpointLoop()
        self._loop.set_exception_handler(lambda _, context: self.defects.append(context["exception"]))
        self._settings = no_heartbeats()
        self._callees = Callees(1, "this")
        self._engine = self._on_loop(self._open_engine())

        async def echo(*args: Any, **kwargs: Any) -> Any:
            return [list(args), kwargs]

        self._callees.register("echo", echo)

    async def _open_engine(self) -> PythonEngine:
        return PythonEngine(asyncio.get_running_loop(), self._settings)

    def _on_loop(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def run(self, data: bytes, *, known: bool, connecting: bool) -> None:
        """A connection whose peer sends ``data``, after a handshake or as its first words, and hangs up."""
        self._on_loop(self._run(data, known=known, connecting=connecting))
        if self.defects:
            raise self.defects.pop()

    async def _run(self, data: bytes, *, known: bool, connecting: bool) -> None:
        side = Side(self._settings, self._engine, self._callees)
        here, there = socket.socketpair()
        with there:
            there.setblocking(False)
            half = Handshake(introduction("this"), TOKEN, connecting=connecting)
            connection = Connection(side, self._loop, here, half, connecting=connecting)
            connection.start()
            stream = connection._stream
            assert isinstance(stream, FrameStream)
            if known:
                shake_hands(stream, there, connecting=connecting)
                assert connection.is_open
            due, loop = self._loop.time() + 60, self._loop
            deadlines, posts = Deadlines(loop), Posts(loop)
            calls = [
                Call("echo", "peer", encode(number), due, 60, deadlines, posts, Answer()) for number in range(CALLS)
            ]
            for call in calls if connecting and known else ():
                connection.submit(call)
            with contextlib.suppress(BrokenPipeError):
                there.sendall(data[:MAX_INPUT])
                there.shutdown(socket.SHUT_WR)
            await self._read_all(stream)
        assert len(side.errors) == 1
        assert isinstance(side.errors[0], RpcError)
        assert stream.out_bytes == 0
        assert all(call.outcome.done() for call in calls if connecting and known)

    async def _read_all(self, stream: FrameStream) -> None:
        for _ in range(10_000):
            if stream.closed:
                break
            stream._readable()
        assert stream.closed, "still open after the end of its bytes"
        await asyncio.sleep(0)  # what was called soon
        await self._callees.cancel_all()


def shake_hands(stream: FrameStream, there: socket.socket, *, connecting: bool) -> None:
    """The peer's half of the handshake."""
    half = Handshake(introduction("peer"), TOKEN, connecting=not connecting)
    if not connecting:
        there.send(half.hello())
        stream._readable()
    while not half.complete:
        frame = there.recv(4096)
        header = gld1.parse_header(frame, max_payload=0)
        head = frame[gld1.HEADER_BYTES : gld1.HEADER_BYTES + header.head_len]
        answer = half.receive(header.kind, gld1.split_head(head)[0])
        if answer is not None:
            there.send(answer)
        stream._readable()


@functools.cache
def harness() -> Harness:
    return Harness()


def check_stranger(data: bytes) -> None:
    """Bytes of one who has proven nothing."""
    harness().run(data, known=False, connecting=False)


def check_client(data: bytes) -> None:
    """Bytes of a peer that knows the token and has opened the connection."""
    harness().run(data, known=True, connecting=False)


def check_server(data: bytes) -> None:
    """Bytes of a peer that knows the token, has accepted the connection, and owes answers."""
    harness().run(data, known=True, connecting=True)


def check_impostor(data: bytes) -> None:
    """Bytes of whoever listens where this side wanted to connect."""
    harness().run(data, known=False, connecting=True)


TARGETS: list[Callable[[bytes], None]] = [
    check_value,
    check_blob,
    check_stranger,
    check_client,
    check_server,
    check_impostor,
]


def check(data: bytes) -> None:
    """One input, for the target that its first byte chooses."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


# --- inputs to begin with ------------------------------------------------------------------------------------------

ODD: list[Any] = [None, -1, "x", b"x", [], [[]], {"x": 1}, 1 << 63, 0.5]


def odd_values() -> list[bytes]:
    """Heads whose messages have fields of types that nobody expects."""
    heads = []
    for name, count in (("fuzz.Checked", 3), ("rpc.Peer", 6), ("rpc.Member", 2), ("rpc.PeerAddress", 5)):
        for odd in ODD:
            content = msgpack.packb([name, [odd] * count])
            heads.append(msgpack.packb([msgpack.ExtType(2, content), []]))
    return [_LENGTH.pack(len(head)) + head for head in heads]


def odd_frames() -> list[bytes]:
    """A frame of every kind with everything that its head does not expect, and what comes after it."""
    metas = [[], *([odd] for odd in ODD), *([odd, odd] for odd in ODD), *(["echo", odd] for odd in ODD)]
    metas += [[word, *([odd] * 3)] for word in ("offer", "lend", "borrow", "decline", "drop") for odd in ODD]
    kinds = [kind for kind in gld1.Kind if kind not in (gld1.Kind.PING, gld1.Kind.PONG)]
    return [bare(kind, 1, meta) + frame(REQUEST, 3, ["echo", 0], [[1], {}]) for kind in kinds for meta in metas]


def frame(kind: gld1.Kind, request_id: int, meta: list[Any], value: Any = None, *, flags: int = 0) -> bytes:
    """A frame that carries a value."""
    encoded = encode(value)
    head = gld1.pack_head(meta, encoded.head)
    start = gld1.pack_frame(kind, request_id, head, flags=flags, deadline_ms=1000, payload_len=encoded.nbytes)
    return start + (b"" if flags else b"".join(encoded.payload_parts()))


def bare(kind: gld1.Kind, request_id: int = 0, meta: list[Any] | None = None) -> bytes:
    return gld1.pack_frame(kind, request_id, gld1.pack_head(meta or []))


VALUES: list[Any] = [
    None,
    [1, -2, 2.5, "text", b"bytes", True, (1, 2)],
    {"a": {"b": [{}]}, 7: [()], ("x", 1): torch.float32},
    {"x": torch.arange(7), "y": torch.ones(2, 3, dtype=torch.float16), "empty": torch.empty(0, 4)},
    Checked(torch.arange(3), 2, ["a"]),
    [Peer("name", "role", 1, 2, 3, "host"), b"z" * 5000],
    list(range(12_000)),
]
REQUEST, RESPONSE, EVENT, ARENA = gld1.Kind.REQUEST, gld1.Kind.RESPONSE, gld1.Kind.EVENT, gld1.Kind.ARENA
FAILURE = ["graphlearn_dist.errors", "InvalidArgumentError", "message", "traceback", ["message"]]


def first_inputs() -> list[bytes]:
    """What a fuzzer starts from: everything valid that the protocol has."""
    strangers = [Handshake(introduction("peer"), TOKEN, connecting=True).hello(), b"GET / HTTP/1.1\r\n\r\n" * 3]
    clients = [
        *(frame(REQUEST, 1, ["echo", 0], [[value], {}]) for value in VALUES),
        frame(REQUEST, 1, ["no such", 0], [[], {}]) + frame(REQUEST, 3, ["echo", 0], 5),
        frame(REQUEST, 1, ["echo", 4096], [[torch.ones(9)], {}], flags=gld1.FLAG_ARENA),
        frame(REQUEST, 1, ["echo", [1, 64]], [[torch.ones(9)], {}], flags=gld1.FLAG_ARENA),
        frame(REQUEST, 1, ["echo", 0], [[1], {}]) + bare(gld1.Kind.CANCEL, 1) + bare(gld1.Kind.PING),
        frame(EVENT, 0, ["registry.view", 0], VALUES[4]) + bare(gld1.Kind.BYE),
        bare(ARENA, 0, ["offer", "/proc/1/fd/9999", 1 << 20, bytes(16)]) + bare(gld1.Kind.RELEASE, 0, [4096]),
        bare(ARENA, 0, ["lend", 1, "/proc/1/fd/9999", 1 << 20, bytes(16)]) + bare(ARENA, 0, ["drop", 1]),
        *(bare(ARENA, 0, meta) for meta in (["accept"], ["refuse", "why"], ["borrow", 1], ["decline", 1, "why"])),
    ]
    servers = [
        *(frame(RESPONSE, 1, [0], value) for value in VALUES),
        frame(RESPONSE, 1, [0], 1) + bare(gld1.Kind.ERROR, 3, FAILURE) + bare(gld1.Kind.ERROR, 0, ["protocol", "no"]),
        bare(gld1.Kind.ERROR, 1, ["builtins", "KeyError", "x", "trace", None]),
    ]
    challenge = Handshake(introduction("peer"), b"other", connecting=False)
    impostors = [challenge.receive(gld1.Kind.HELLO, [introduction("this").to_fields(), bytes(16)]) or b""]
    impostors += [gld1.pack_refusal(ProtocolError("no")), bare(gld1.Kind.WELCOME)]
    blobs = [b"".join(encode(value).write_parts()) for value in VALUES]
    values = [*(value_input(encode(value)) for value in VALUES), *odd_values()]
    frames = odd_frames()
    by_target = [values, blobs, strangers, [*clients, *frames], [*servers, *frames], [*impostors, *frames]]
    return [bytes([target]) + data for target, inputs in enumerate(by_target) for data in inputs]

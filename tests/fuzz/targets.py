"""What must hold for whatever bytes arrive: ``check(data)`` raises where it does not.

The first byte chooses the target: the decoder of values, the decoder of stored values, a connection that a stranger
opens, a connection whose peer knows the token, one that this side opened and has requests on, the handshake's
messages, how queries for batches end, and what is asked of a producer. The rest is what the decoder is given, or what
the peer sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Any

import msgpack
import torch

from graphlearn_dist.config import RpcSettings
from graphlearn_dist.distributed.dist_server import DistServer
from graphlearn_dist.distributed.producers.pending_batch import Core, PendingBatch
from graphlearn_dist.distributed.workers.batch_shelf import BatchShelf
from graphlearn_dist.distributed.workers.sampling_producer import SamplingProducer
from graphlearn_dist.distributed.workers.worker_handle import WorkerHandle
from graphlearn_dist.distributed.workers.worker_memory import WorkerMemory
from graphlearn_dist.distributed.workers.worker_messages import ItemHeader, ItemKind, StartRun
from graphlearn_dist.errors import GraphLearnError, ProtocolError, RpcError, SamplingWorkerError
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
from graphlearn_dist.rpc.shm import arena as arenas
from graphlearn_dist.rpc.shm import exchange as exchanges
from graphlearn_dist.rpc.shm.arena import SendingArena
from graphlearn_dist.rpc.shm.loans import Loans
from graphlearn_dist.rpc.wire import gld1
from graphlearn_dist.rpc.wire.codec import Value
from graphlearn_dist.rpc.wire.encoded import Encoded
from graphlearn_dist.sampler.epochs.schedule import BatchIndices, BatchShare

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


# --- shared memory -------------------------------------------------------------------------------------------------

SHARED = "/proc/1/fd/9999"  # where inputs say that a peer's memory is, in whichever process they are tried
SHARED_BYTES = 1 << 16
NONCE = bytes(16)


@functools.cache
def shared_memory() -> SendingArena:
    memory = SendingArena(SHARED_BYTES)
    memory.view(0, 16)[:] = NONCE
    return memory


open_sealed = arenas.open_sealed


def open_shared(path: str, size: int, nonce: bytes, **options: Any) -> Any:
    return open_sealed(shared_memory().path if path == SHARED else path, size, nonce, **options)


arenas.open_sealed = exchanges.open_sealed = open_shared


# --- connections ---------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """What a connection asks of its endpoint: everything is real but the endpoint itself."""

    settings: RpcSettings
    engine: PythonEngine
    callees: Callees
    loans: Loans
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
        self.loans = Loans(self._loop)
        self._engine = self._on_loop(self._open_engine())

        async def echo(*args: Any, **kwargs: Any) -> Any:
            return [list(args), kwargs]

        self._callees.register("echo", echo)

    async def _open_engine(self) -> PythonEngine:
        return PythonEngine(asyncio.get_running_loop(), self._settings)

    def _on_loop(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def wait_for(self, work: Any) -> None:
        self._on_loop(work)
        if self.defects:
            raise self.defects.pop()

    def run(self, data: bytes, *, known: bool, connecting: bool) -> None:
        """A connection whose peer sends ``data``, after a handshake or as its first words, and hangs up."""
        self.wait_for(self._run(data, known=known, connecting=connecting))

    async def _run(self, data: bytes, *, known: bool, connecting: bool) -> None:
        side = Side(self._settings, self._engine, self._callees, self.loans)
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


# --- batches -------------------------------------------------------------------------------------------------------


class Borrower:
    """What an exchange asks of its connection, and what a ``PendingBatch`` asks of the core's answer and stream."""

    kind = "unix"
    is_called_off = False
    is_closed = False

    def __init__(self, ending: Any) -> None:
        self.loans = harness().loans
        self.ending = ending
        self.num_borrowed = self.num_lost = 0

    def wait(self, timeout_s: float | None) -> bool:
        return True

    def take(self) -> Any:
        ending, self.ending = self.ending, None
        return ending

    def borrowed(self) -> None:
        self.num_borrowed += 1

    def close(self) -> None:
        self.num_lost += 1

    def send_arena_frame(self, meta: list[Any]) -> None:
        assert meta == ["borrow", 1]

    def send_releases(self, places: list[Any]) -> None:
        return None


def check_answer(data: bytes) -> None:
    """How a query for a batch ended, and what came: a value, or an error of this package."""
    if len(data) < _LENGTH.size + 1:
        return
    kind, rest = data[0] % 4, data[1:]
    end = _LENGTH.size + _LENGTH.unpack_from(rest)[0]
    head, payload = rest[_LENGTH.size : end], rest[end:]
    place = struct.unpack("<3Q", payload[:24].ljust(24, b"\0"))
    shared_memory().view(64, SHARED_BYTES - 64)[: len(payload[24:])] = payload[24:]
    wire = Borrower(
        [("answered", head, bytearray(payload) or None), ("lent", head, (place[:2], place[2])), ("failed", head, None)][
            kind % 3
        ]
    )
    exchange: Any = exchanges.PayloadExchange(wire)  # type: ignore[arg-type]
    exchange.on_frame(["lend", 1, SHARED, SHARED_BYTES, NONCE])
    try:
        core = Core(None, wire, introduction("server").peer, exchange.take)  # type: ignore[arg-type]
        pending = PendingBatch(wire, core)  # type: ignore[arg-type]
        error = pending.exception(0)
        assert error is None or isinstance(error, GraphLearnError)
        with contextlib.suppress(GraphLearnError):
            encode(pending.result(0))
        assert wire.num_borrowed + wire.num_lost <= 1
    finally:
        pending = error = None  # type: ignore[assignment]
        exchange.close()


class Process:
    """A worker's process, as far as it is told of runs."""

    is_up = True

    def __init__(self) -> None:
        self.run = 0

    def send(self, start: StartRun) -> None:
        encode(start)
        ItemHeader(ItemKind.END, start.run, start.epoch, 0).pack()
        list(islice(start.share.groups(), 3))
        self.run = start.run


NUM_BATCHES, NUM_WORKERS = 12, 2
CALLS_OF_BATCHES: list[Any] = [
    DistServer.start_new_epoch_sampling,
    DistServer.grant_batches,
    DistServer.fetch_batch,
    DistServer.fetch_one_sampled_message,
]


def check_producer(data: bytes) -> None:
    """What is asked of a producer, ``[[number of a function, arguments], ...]``: done, or refused as a whole."""
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else 0
    try:
        calls = decode(data[_LENGTH.size : end], bytearray(data[end:]) or None)
    except ProtocolError:
        return
    if isinstance(calls, list):
        harness().wait_for(_ask_producer(calls[:20]))


async def _ask_producer(calls: list[Any]) -> None:
    shelf = BatchShelf("producer", NUM_WORKERS)
    shelf.open()
    workers = [WorkerHandle("worker", shelf, number, WorkerMemory.divide(1 << 17), 0) for number in range(NUM_WORKERS)]
    processes = [Process() for _ in workers]
    for worker, process in zip(workers, processes, strict=True):
        worker._process = process  # type: ignore[assignment]
    producer: Any = SamplingProducer.__new__(SamplingProducer)
    producer._name, producer._run, producer._epoch, producer._num_given = "producer", 0, 0, 0
    producer._share, producer._shelf, producer._workers = BatchShare(BatchIndices(0, 0)), shelf, workers
    producer.schedule, producer.fetch = SimpleNamespace(num_batches=NUM_BATCHES), shelf.fetch
    server = SimpleNamespace(_producer=lambda producer_id: producer)
    asked = []
    for call in calls:
        match call:
            case [int(number), list(arguments)]:
                function = CALLS_OF_BATCHES[number % len(CALLS_OF_BATCHES)]
                with contextlib.suppress(TypeError):  # other arguments than it has
                    asked.append(asyncio.ensure_future(function(server, *arguments)))
                await asyncio.sleep(0)
        assert all(process.run == producer._run for process in processes), "begun here, and not there"
    shelf.end(SamplingWorkerError("over"))
    await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
    shelf.close()


TARGETS: list[Callable[[bytes], None]] = [
    check_value,
    check_blob,
    check_stranger,
    check_client,
    check_server,
    check_impostor,
    check_answer,
    check_producer,
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


def endings() -> Iterator[bytes]:
    """How queries for batches end."""
    for encoded in map(encode, VALUES):
        payload = b"".join(encoded.payload_parts())
        head = _LENGTH.pack(len(encoded.head)) + encoded.head
        yield b"\0" + head + payload
        yield b"\1" + head + struct.pack("<3Q", 1, 64, len(payload)) + payload
    for failure in (FAILURE, [], ["x"] * 5):
        packed = msgpack.packb(failure)
        yield b"\2" + _LENGTH.pack(len(packed)) + packed


def calls_of_batches() -> Iterator[list[Any]]:
    """What clients ask of a producer, in order and out of it."""
    all_of_it = BatchIndices(0, NUM_BATCHES)
    yield [[0, [1, 0]], [2, [1, 1, 0, None]], [2, [1, 1, NUM_BATCHES]], [1, [1, 1, 3]], [0, [1, 1]], [3, [1]]]
    yield [[0, [1, 3, 9, BatchShare(all_of_it, 2, 1, 3, 4), 1 << 20]], [2, [1, 9, 2, 2]], [2, [1, 9, 2, 2]]]
    for odd in (*ODD, 1 << 62, -(1 << 63)):
        yield [[0, [1, odd]], [0, [1, odd, 1]]]
        yield [[0, [1, 0, odd]], [0, [1, 0, 1, odd]], [0, [1, 0, 2, None, odd]], [0, [1, 0, 1 << 40]]]
        yield [[0, [1, 0]], [1, [1, odd, 0]], [1, [1, 1, odd]], [2, [1, 1, odd]], [2, [1, 1, 0, odd]], [2, [odd, odd]]]
    for share in (BatchShare(all_of_it, 1 << 63), BatchShare(all_of_it, 1, 1 << 62, 1 << 62, 5)):
        yield [[0, [1, 0, 1, share]]]


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
        bare(ARENA, 0, ["offer", SHARED, 1 << 20, NONCE]) + bare(gld1.Kind.RELEASE, 0, [4096]),
        bare(ARENA, 0, ["lend", 1, SHARED, 1 << 20, NONCE]) + bare(ARENA, 0, ["drop", 1]),
        bare(ARENA, 0, ["offer", SHARED, SHARED_BYTES, NONCE])
        + frame(REQUEST, 1, ["echo", 4096], [[torch.ones(9)], {}], flags=gld1.FLAG_ARENA),
        bare(ARENA, 0, ["lend", 1, SHARED, SHARED_BYTES, NONCE])
        + frame(REQUEST, 1, ["echo", [1, 64]], [[torch.ones(9)], {}], flags=gld1.FLAG_ARENA)
        + bare(ARENA, 0, ["drop", 1]),
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
    by_target += [list(endings()), [value_input(encode(calls)) for calls in calls_of_batches()]]
    return [bytes([target]) + data for target, inputs in enumerate(by_target) for data in inputs]

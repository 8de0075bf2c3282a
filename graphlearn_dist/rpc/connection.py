"""One connection between two endpoints, both ways. Runs on the endpoint's loop thread, but for small requests, which
other threads may send and whose answers they may receive themselves, and small answers, which the threads send that
made them."""

from __future__ import annotations

import asyncio
import functools
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .._C import RpcStream
from ..config import RpcSettings
from ..errors import (
    AuthenticationError,
    InvalidArgumentError,
    OverloadedError,
    PeerLostError,
    ProtocolError,
    RpcError,
)
from .calls.call import Call
from .engine.engines import Engine
from .engine.native import OVERLOAD_FACTOR, NativeStream
from .engine.threads import post
from .peers.handshake import MAX_TIME_S, Handshake, Introduction
from .peers.identity import Peer, describe_origin
from .shm.arena import SendingArena
from .shm.exchange import ExchangeStats, PayloadExchange
from .shm.loans import Loans
from .traffic import PeerTraffic
from .wire.codec import Value, decode
from .wire.encoded import Encoded, release
from .wire.failures import pack_failure, read_failure
from .wire.gld1 import FLAG_ARENA, MAX_DEADLINE_MS, Header, Kind, pack_frame, pack_head, read_refusal, split_head

_LOOK_AGAIN_S = 0.05  # whether answers were read
_RELEASED_AT_ONCE = 1000  # places in a frame, of at most 19 bytes each
_OUT_LIMIT_BYTES = 64 << 20  # queued answers beyond which new requests of this peer wait


class Served(Protocol):
    """A request of the peer that is being answered."""

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""


class Owner(Protocol):
    """What a connection asks of its endpoint."""

    @property
    def settings(self) -> RpcSettings: ...
    @property
    def engine(self) -> Engine:
        """What moves the frames."""

    @property
    def loans(self) -> Loans:
        """What it has lent to tensors."""

    def sending_arena(self) -> SendingArena | None:
        """The endpoint's arena, opened when it is first wanted; None where it has none."""

    def connection_opened(self, connection: Connection) -> None: ...
    def connection_closed(self, connection: Connection, error: RpcError) -> None: ...
    @property
    def serve(self) -> Callable[[Connection, int, int, str, Value], tuple[Served, Callable[[], None]]]:
        """What answers a request, by ``connection.respond`` or ``respond_failure``, and what begins to.

        Takes the connection, the request's id, the milliseconds left, the function's name and the arguments. When the
        second has been called, which is done once, the answer may have been given.
        """

    def event(self, connection: Connection, topic: str, value: Any) -> None: ...


@dataclass
class ConnectionStats:
    """Counters of one connection since it opened."""

    requests_sent: int = 0
    requests_served: int = 0
    inline_payloads_sent: int = 0
    events: dict[str, int] = field(default_factory=dict)


class Connection:
    """One socket to one peer. ``opened`` is set when both sides know each other.

    Args:
        owner: the endpoint.
        loop: its loop.
        sock: a connected socket, owned from here on.
        handshake: this side's half.
        connecting: whether this side opened the connection.
    """

    def __init__(
        self,
        owner: Owner,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        handshake: Handshake,
        *,
        connecting: bool,
    ) -> None:
        self.opened: asyncio.Future[Peer] = loop.create_future()
        self.stats = ConnectionStats()
        self.kind = "unix" if sock.family == socket.AF_UNIX else "tcp"
        self.local_host = "" if self.kind == "unix" else str(sock.getsockname()[0])
        self.origin = describe_origin(sock)
        self.refused = False  # this side closed it for what the other side did, or did not
        self.other: Introduction | None = None
        self._peer_limit_bytes = 0
        self._owner = owner
        self._loop = loop
        self._settings = owner.settings
        self._handshake = handshake
        self._connecting = connecting
        self._next_id = 1 if connecting else 2
        self._pending: dict[int, Call] = {}  # who takes a call out of it settles it
        self._registering = threading.Lock()
        self._waiting: deque[Call] = deque()  # each with its caller, who keeps the arguments, and a deadline
        self._serving: dict[int, Served] = {}
        # By id, what is to be served, and until when. Counted as what is served: beyond that is Overloaded.
        self._parked: dict[int, tuple[str, Value, float]] = {}
        self._exchange = PayloadExchange(self)
        self._stream = owner.engine.attach(sock, self._on_frame, self._on_closed)
        self._shortcut = self._stream.shortcut
        if isinstance(self._stream, NativeStream):
            self._exchange.native = self._stream.native
            self._stream.on_offer = self._exchange.offer
        self._handshake_timer = loop.call_later(MAX_TIME_S, self.turn_away, f"no handshake within {MAX_TIME_S:g} s")

    def start(self) -> None:
        """Begin the handshake."""
        if self._connecting:
            self._stream.send(self._handshake.hello())

    @property
    def exchange_stats(self) -> ExchangeStats:
        """Counters of what passed through shared memory."""
        return self._exchange.stats

    @property
    def take_lent(self) -> Callable[[Any, int], Any]:
        """Gives the payload of an answer to a query that is lent, by its place and its bytes. From any thread."""
        return self._exchange.take

    @property
    def is_open(self) -> bool:
        """Whether requests can go out."""
        return self.other is not None and not self._stream.closed

    @property
    def peer(self) -> Peer:
        """Who is at the other end."""
        if self.other is None:
            raise ProtocolError("the handshake is not over")
        return self.other.peer

    @property
    def query_stream(self) -> RpcStream | None:
        """What queries go by; None where this side's engine or the other's is in Python."""
        native = self._stream.native if isinstance(self._stream, NativeStream) else None
        return native if self.other is not None and self.other.answers_queries else None

    @property
    def queries(self) -> tuple[int, int]:
        """How many were sent, and served, since it opened."""
        native = self._stream.native if isinstance(self._stream, NativeStream) else None
        return (0, 0) if native is None else (native.queries_sent, native.queries_served)

    @property
    def traffic(self) -> PeerTraffic:
        """What went over it since it opened. From any thread."""
        (sent, received), (queries_sent, queries_served) = self._stream.traffic, self.queries
        stats = self.stats
        return PeerTraffic(sent, received, stats.requests_sent + queries_sent, stats.requests_served + queries_served)

    @property
    def peer_name(self) -> str:
        """The peer's name, as far as it is known."""
        return self.other.peer.name if self.other is not None else "peer"

    # --- requests of this side ---------------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        """Send a request, or let it wait until fewer are in flight."""
        if call.outcome.done():
            call.finish()
        elif not self.is_open:
            call.finish(error=PeerLostError(self.peer_name, "connection closed"))
        elif not self._waiting and self._register(call):
            self._send_request(call)
        else:
            call.carrier = self
            self._waiting.append(call)

    def submit_here(self, call: Call) -> bool:
        """Send a small request on the calling thread, unless the loop has to."""
        may_send = self._shortcut is not None and call.nbytes < self._settings.arena_threshold_bytes
        if not may_send or self._waiting or not self._register(call):
            return False
        self._send_request(call)
        return True

    def _register(self, call: Call) -> bool:
        """Count a call among those in flight, if there is room for it. From any thread."""
        with self._registering:
            other = self.other
            if other is None or self._stream.closed or len(self._pending) >= other.max_inflight:
                return False
            call.request_id = self._next_id
            self._next_id += 2
            self._pending[call.request_id] = call
            self.stats.requests_sent += 1
        call.carrier = self
        return True

    def _send_request(self, call: Call) -> None:
        encoded, call.encoded = call.encoded, None
        if encoded is None:
            return
        remaining_ms = min(max(1, int((call.deadline - time.monotonic()) * 1000)), MAX_DEADLINE_MS)
        try:
            back = self.loans.take(self.send_releases) if self._exchange.borrows else []
            before = _release_frames(back) if back else b""
            self._send_value(Kind.REQUEST, call.request_id, (call.function,), encoded, remaining_ms, before)
        except InvalidArgumentError as error:
            self._settle(call.request_id, error=error)

    def await_answer(self, call: Call, timeout_s: float) -> None:
        """Let the calling thread receive the answer; only the first of a call's threads does."""
        shortcut = self._shortcut
        if shortcut is None or call.awaited_by or call.request_id == 0:
            return
        call.awaited_by = threading.get_ident()
        shortcut.expect_answer(call.request_id)
        try:
            if call.is_settled:  # nobody would let this thread go
                shortcut.forget_answer(call.request_id)
            else:
                shortcut.await_answer(call.request_id, timeout_s, self._on_frame)
        finally:
            call.awaited_by = 0

    def answer_is_settled(self, call: Call) -> None:
        """Let go the thread in ``await_answer``."""
        if self._shortcut is not None:
            self._shortcut.release_answer(call.request_id)

    def cancel(self, call: Call) -> bool:
        """Nobody waits for ``call`` any more; the peer is told when it knows of it. False: it is settled already."""
        if self._pending.pop(call.request_id, None) is not None:
            self._stream.send(pack_frame(Kind.CANCEL, call.request_id, pack_head([])))
            self.answer_is_settled(call)
            self._send_waiting()
            return True
        if call in self._waiting:
            self._waiting.remove(call)
            return True
        return False

    def _settle(self, request_id: int, result: Any = None, error: BaseException | None = None) -> None:
        """The end of a call. From any thread."""
        call = self._pending.pop(request_id, None)
        if call is not None:
            call.finish(result, error)
            if self._waiting:
                post(self._loop, self._send_waiting)

    def _send_waiting(self) -> None:
        while self._waiting:
            call = self._waiting[0]
            if call.outcome.done():
                self._waiting.popleft().finish()
            elif self._register(call):
                self._send_request(self._waiting.popleft())
            else:
                return

    # --- answers of this side ----------------------------------------------------------------------------------

    def respond(self, request_id: int, encoded: Encoded) -> None:
        """Answer a request; dropped where nobody waits for it any more."""
        if self._serving.pop(request_id, None) is None or self._stream.closed:
            release(encoded)
            return
        try:
            self._send_value(Kind.RESPONSE, request_id, (), encoded)
        except InvalidArgumentError as error:
            self._stream.send(pack_frame(Kind.ERROR, request_id, pack_head(pack_failure(error))))

    def respond_here(self, request_id: int, encoded: Encoded) -> bool:
        """``respond`` with a small answer on the calling thread; False where the loop has to."""
        if self._shortcut is None or encoded.nbytes >= self._settings.arena_threshold_bytes:
            return False
        self.respond(request_id, encoded)
        return True

    def respond_failure(self, request_id: int, failure: list[Any]) -> None:
        """Answer a request with an error (see ``failures.pack_failure``)."""
        if self._serving.pop(request_id, None) is not None and self.is_open:
            self._stream.send(pack_frame(Kind.ERROR, request_id, pack_head(failure)))

    def send_event(self, topic: str, encoded: Encoded) -> None:
        """Tell the peer something that it did not ask for."""
        if self.is_open:
            self._send_value(Kind.EVENT, 0, (topic,), encoded)
        else:
            release(encoded)

    def _send_value(
        self,
        kind: Kind,
        request_id: int,
        meta: tuple[str, ...],
        encoded: Encoded,
        deadline_ms: int = 0,
        before: bytes = b"",
    ) -> None:
        """``before``: whole frames that go with it."""
        limit, nbytes = self._peer_limit_bytes, encoded.nbytes
        if nbytes > limit:
            release(encoded)
            raise InvalidArgumentError(f"payload: {self.peer_name} takes at most {limit} bytes, got {nbytes}")
        is_shared = self.kind == "unix" and nbytes >= self._settings.arena_threshold_bytes
        place = self._exchange.put(encoded) if is_shared else 0
        head = pack_head((*meta, place), encoded.head)
        frame = before + pack_frame(kind, request_id, head, FLAG_ARENA if place else 0, deadline_ms, nbytes)
        if place:
            self._stream.send(frame)
            if isinstance(place, int):  # copied; a lent payload goes back when the peer says so
                release(encoded)
            return
        if nbytes:
            with self._registering:
                self.stats.inline_payloads_sent += 1
        self._stream.send(frame, encoded.payload_parts() if nbytes else (), functools.partial(release, encoded))

    # --- shared memory -----------------------------------------------------------------------------------------

    def sending_arena(self) -> SendingArena | None:
        """The endpoint's arena."""
        return self._owner.sending_arena()

    @functools.cached_property
    def loans(self) -> Loans:
        """What the endpoint has lent to tensors."""
        return self._owner.loans

    @property
    def peer_pid(self) -> int:
        """The peer's process."""
        return self.peer.pid

    def when_readable(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Calls back, on the loop, each time a descriptor can be read."""
        self._loop.add_reader(descriptor, callback)

    def forget_readable(self, descriptor: int) -> None:
        """Ends ``when_readable``."""
        self._loop.remove_reader(descriptor)

    def when_answered(self, number: int, callback: Callable[[], Any]) -> None:
        """Calls back, on the loop, when nobody has an answer of now any more, to a request or from that region of the
        peer's, and has not read it: those from others may be there for as long as a loader is."""
        with self._registering:
            under_way = list(self._pending)
        self._call_when_answered(under_way, number, callback)

    def _call_when_answered(self, under_way: list[int], number: int, callback: Callable[[], Any]) -> None:
        left = [request_id for request_id in under_way if request_id in self._pending]
        native = self._exchange.native
        if (left or (native is not None and native.lent_here(number))) and not self._stream.closed:
            self._loop.call_later(_LOOK_AGAIN_S, self._call_when_answered, left, number, callback)
        else:
            callback()

    def send_arena_frame(self, meta: list[Any]) -> None:
        """Tells the peer something about shared memory."""
        if not self._stream.closed:
            self._stream.send(pack_frame(Kind.ARENA, 0, pack_head(meta)))

    def send_releases_later(self, places: list[Any]) -> None:
        """``send_releases``, from any thread."""
        post(self._loop, self.send_releases, places)

    def send_releases(self, places: list[Any]) -> None:
        """Tells the peer that places are free."""
        if not self._stream.closed:
            self._stream.send(_release_frames(places))

    # --- what arrives ------------------------------------------------------------------------------------------

    def _on_frame(self, header: Header, head: Any, payload: Any) -> None:
        if header.kind == Kind.ERROR and header.request_id == 0:
            raise read_refusal(head, self.peer_name)
        meta, value_head = split_head(head)
        if self.other is None:
            self._on_handshake(header.kind, meta)
            return
        match header.kind:
            case Kind.REQUEST:
                self._on_request(header, meta, value_head, payload)
            case Kind.RESPONSE:
                self._on_response(header, meta, value_head, payload)
            case Kind.ERROR:
                if header.request_id in self._pending:
                    self._settle(header.request_id, error=read_failure(self.peer_name, meta))
            case Kind.CANCEL:
                self._on_cancel(header.request_id)
            case Kind.ARENA:
                self._exchange.on_frame(meta)
            case Kind.RELEASE:
                self._exchange.on_release(meta)
            case Kind.EVENT:
                self._on_event(header, meta, value_head, payload)
            case Kind.BYE:
                self._stream.close(PeerLostError(self.peer_name, "it closed the connection"))
            case _:
                raise ProtocolError(f"unexpected {header.kind.name} frame")

    def _on_handshake(self, kind: Kind, meta: list[Any]) -> None:
        answer = self._handshake.receive(kind, meta)
        if answer is not None:
            self._stream.send(answer)
        if self._handshake.complete and not self._stream.closed:
            self.other = self._handshake.other
            if self.other is not None:
                self._peer_limit_bytes = self.other.max_payload_bytes
            least_lent = self._settings.arena_threshold_bytes
            self._stream.lift_limits(self._peer_limit_bytes, self.peer.key if self.other else "", least_lent)
            self._handshake_timer.cancel()
            if not self.opened.done():
                self.opened.set_result(self.peer)
            self._owner.connection_opened(self)

    def _on_request(self, header: Header, meta: list[Any], value_head: Any, payload: Any) -> None:
        request_id = header.request_id
        theirs = 0 if self._connecting else 1
        is_known = request_id in self._serving or request_id in self._parked
        if len(meta) != 2 or type(meta[0]) is not str or request_id % 2 != theirs or is_known:
            raise ProtocolError("malformed request")
        if header.flags & FLAG_ARENA:
            payload = self._exchange.take(meta[1], header.payload_len)
        value = Value(value_head, payload)
        if len(self._serving) + len(self._parked) >= OVERLOAD_FACTOR * self._settings.max_inflight:
            failure = pack_failure(OverloadedError(self.own_name, 0.1))
            self._stream.send(pack_frame(Kind.ERROR, request_id, pack_head(failure)))
        elif self._parked or self._stream.out_bytes > _OUT_LIMIT_BYTES:
            if not self._parked:
                self._stream.when_below(_OUT_LIMIT_BYTES, self._unpark)
            self._parked[request_id] = meta[0], value, self._loop.time() + (header.deadline_ms or math.inf) / 1000
        else:
            self._serve(request_id, header.deadline_ms, meta[0], value)

    @property
    def own_name(self) -> str:
        """This side's name, for messages."""
        return self._handshake.own_name

    def _serve(self, request_id: int, deadline_ms: int, function: str, value: Value) -> None:
        self.stats.requests_served += 1
        served, begin = self._owner.serve(self, request_id, deadline_ms, function, value)
        self._serving[request_id] = served
        begin()

    def _unpark(self) -> None:
        try:
            while self._parked and self._stream.out_bytes <= _OUT_LIMIT_BYTES:
                request_id = next(iter(self._parked))
                function, value, until = self._parked.pop(request_id)
                left_s = until - self._loop.time()
                if left_s > 0:  # else its caller has given up
                    self._serve(request_id, 0 if left_s == math.inf else math.ceil(left_s * 1000), function, value)
        finally:  # one that cannot be begun keeps no others waiting
            if self._parked:
                self._stream.when_below(_OUT_LIMIT_BYTES, self._unpark)

    def _on_response(self, header: Header, meta: list[Any], value_head: Any, payload: Any) -> None:
        if len(meta) != 1:
            raise ProtocolError("malformed response")
        if header.flags & FLAG_ARENA:
            try:
                payload = self._exchange.take(meta[0], header.payload_len)
            except ProtocolError:
                if not self._stream.closed:
                    raise
                # It is over, and with it what was lent; nobody else settles what this thread has the answer to.
                self._settle(header.request_id, error=PeerLostError(self.peer_name, "connection closed"))
                return
        if header.request_id not in self._pending:
            return  # cancelled, or past its deadline
        try:
            result = decode(value_head, payload)
        except ProtocolError as error:  # the frame is whole: only this answer is lost
            self._settle(header.request_id, error=error)
            return
        self._settle(header.request_id, result)

    def _on_cancel(self, request_id: int) -> None:
        self._parked.pop(request_id, None)
        served = self._serving.pop(request_id, None)
        if served is not None:
            served.cancel()

    def _on_event(self, header: Header, meta: list[Any], value_head: Any, payload: Any) -> None:
        if len(meta) != 2 or type(meta[0]) is not str:
            raise ProtocolError("malformed event")
        if header.flags & FLAG_ARENA:
            payload = self._exchange.take(meta[1], header.payload_len)
        self._owner.event(self, meta[0], decode(value_head, payload))

    # --- life and death ----------------------------------------------------------------------------------------

    def drained(self) -> asyncio.Future[None]:
        """Done when nothing is queued for the peer."""
        return self._stream.drained()

    def close(self, why: str, *, goodbye: bool = False) -> None:
        """Close; calls in flight fail with ``PeerLostError`` and ``why``."""
        if goodbye and self.is_open:
            self._stream.send(pack_frame(Kind.BYE, 0, pack_head([])))
        self._stream.close(PeerLostError(self.peer_name, why))

    def turn_away(self, why: str) -> None:
        """Close a connection whose handshake is not over. The other side is not told: if honest, it tries again."""
        self.refused = not self._connecting
        self.close(why)

    def _take_pending(self) -> list[Call]:
        """All calls in flight but those whose thread has its answer."""
        with self._registering:
            calls = list(self._pending.values())
        shortcut = self._shortcut
        unanswered = [call for call in calls if shortcut is None or shortcut.release_answer(call.request_id)]
        return [call for call in unanswered if self._pending.pop(call.request_id, None) is not None]

    def _on_closed(self, error: RpcError) -> None:
        self._handshake_timer.cancel()
        by_bytes = isinstance(error, (AuthenticationError, ProtocolError))
        self.refused |= by_bytes and (self.other is not None or not self._connecting)
        peer = str(self.other.peer) if self.other is not None else "peer"
        if isinstance(error, PeerLostError):
            error = PeerLostError(peer, error.why)
        why = error.why if isinstance(error, PeerLostError) else str(error)
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # seen: an accepting side has nobody who waits for it
        for call in [*self._take_pending(), *self._waiting]:
            call.finish(error=PeerLostError(peer, why))
        self._waiting.clear()
        self._parked.clear()
        serving, self._serving = self._serving, {}
        for served in list(serving.values()):  # a thread may be about to take out what it has answered
            served.cancel()
        self._exchange.close()
        self._owner.connection_closed(self, error)


def _release_frames(places: list[Any]) -> bytes:
    """Says of places of the peer's that they are free."""
    cut = range(0, len(places), _RELEASED_AT_ONCE)
    return b"".join(pack_frame(Kind.RELEASE, 0, pack_head(places[i : i + _RELEASED_AT_ONCE])) for i in cut)

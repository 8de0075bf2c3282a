"""Sockets driven by the native engine (``csrc/rpc/engine.h``), seen from an asyncio loop."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..._C import RpcEngine, RpcStream
from ...config import RpcSettings
from ...errors import PeerLostError, ProtocolError, RpcError, SystemLimitError, VersionMismatchError
from ..traffic import FrameBytes
from ..wire.gld1 import FLAG_ARENA, HEADER_BYTES, KINDS, header_of, pack_refusal
from .framing import ClosedHandler, Drain, FrameHandler, tune_socket
from .threads import post

_NO_MEMORY = "no memory for what it sent"
_SHARE = 4  # events of one stream that others wait for
OVERLOAD_FACTOR = 4  # requests still running here, in multiples of what the peer may have in flight
_QUERY_FACTOR = 64  # queries that wait, likewise: each loader of a client may ask for dozens of batches ahead
_ROUNDS = 4  # over all streams, before the loop sees to what else there is


class NativeStream:
    """One socket's frames (see ``engine.Stream``).

    Attributes:
        native: the core's, which queries are sent by.
        on_offer: told of a region that answers to queries lie in, and that the peer was not offered.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, native: RpcStream, on_frame: FrameHandler, on_closed: ClosedHandler
    ) -> None:
        self.closed = False
        self.native = native
        self.on_offer: Callable[[int], None] | None = None
        self._on_room: Callable[[], None] | None = None
        self._loop = loop
        # Any thread may call these and ``send`` and ``await_answer``; without a step of Python's in between.
        self.lift_limits = native.lift_limits
        self.expect_answer = native.expect_answer
        self.forget_answer = native.forget_answer
        self.release_answer = native.release_answer
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._drain = Drain(loop)
        # What the engine borrows: memory that must stay, and who wants to know when it need not.
        self._unsent: dict[int, tuple[Sequence[Any], Callable[[], None] | None]] = {}
        self._tokens = itertools.count(1)

    @property
    def shortcut(self) -> NativeStream:
        """Itself."""
        return self

    @property
    def out_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self.native.out_bytes

    @property
    def traffic(self) -> tuple[FrameBytes, FrameBytes]:
        """What was sent and received since it opened; what is queued was sent."""
        return FrameBytes(*self.native.sent), FrameBytes(*self.native.received)

    def send(self, frame: bytes, parts: Sequence[memoryview] = (), on_sent: Callable[[], None] | None = None) -> None:
        """Send a frame, or queue it."""
        borrowed = [frame, *parts]
        token = next(self._tokens)
        self._unsent[token] = (borrowed, on_sent)  # before the loop can hear that it is sent
        is_over = self.closed or self.native.send(token, borrowed)
        if is_over and self._unsent.pop(token, None) is not None and on_sent is not None:
            on_sent()

    def await_answer(self, request_id: int, timeout_s: float, on_frame: FrameHandler) -> None:
        """Wait for an answer, reading what comes, and handle its frame on this thread."""
        frame = self.native.await_answer(request_id, timeout_s)
        if frame is None:
            return
        fields, head, payload = frame
        problem: tuple[Callable[[RpcError], None], RpcError] | None = None
        try:
            on_frame(header_of((KINDS[fields[0]], *fields[1:])), head, payload)
        except MemoryError:
            problem = self.close, PeerLostError("peer", _NO_MEMORY)
        except RpcError as error:
            problem = self.refuse, error
        finally:  # not before: the loop may hear meanwhile that the connection is closed, and fails what has no answer
            self.forget_answer(request_id)
        if problem is not None:
            post(self._loop, *problem)

    def when_below(self, nbytes: int, callback: Callable[[], None]) -> None:
        """Call back once when no more than so many bytes wait to be sent; what queries are answered with counts."""
        self._on_room = callback
        self.native.tell_when_below(nbytes)

    def drained(self) -> asyncio.Future[None]:
        """Done when nothing is queued, or the stream is closed."""
        return self._drain.wait(is_empty=self._is_drained())

    def _is_drained(self) -> bool:
        # Another thread may be sending, which ends by itself; and a heartbeat that waits keeps nobody.
        return self.closed or not self._unsent or self.out_bytes == 0

    def refuse(self, error: RpcError) -> None:
        """Say why, as far as the socket takes it at once, and close."""
        if not self._unsent:
            self.send(pack_refusal(error))
        self.close(error)

    def close(self, error: RpcError) -> None:
        """Close the socket, let go of everything queued, and report ``error``. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.native.close()
        self._drain.report()
        on_closed = self._on_closed
        self.on_offer = self._on_room = None
        del self._on_frame, self._on_closed  # they lead back here: a connection must not wait for a garbage collection
        on_closed(error)

    # --- what the engine tells ---------------------------------------------------------------------------------

    def receive(self, frame: tuple[tuple[int, int, int, int, int, int], bytes, Any]) -> None:
        """A frame came."""
        if self.closed:
            return
        fields, head, payload = frame
        header = header_of((KINDS[fields[0]], *fields[1:]))
        try:
            self._handle(self._on_frame, header, head, payload)
        finally:
            _, flags, _, head_len, _, payload_len = fields
            self.native.taken(HEADER_BYTES + head_len + (0 if flags & FLAG_ARENA else payload_len))

    def _handle(self, handler: Callable[..., None], *args: Any) -> None:
        try:
            handler(*args)
        except MemoryError:
            self.close(PeerLostError("peer", _NO_MEMORY))
        except RpcError as error:
            self.refuse(error)

    def sent(self, token: int) -> None:
        """A queued frame is with the kernel."""
        _, on_sent = self._unsent.pop(token)
        if on_sent is not None:
            on_sent()
        if self._drain.waiting and self._is_drained():
            self._drain.report()

    def offer(self, region: int) -> None:
        """An answer to a query lies in a region that the peer was not offered."""
        if self.on_offer is not None:
            self.on_offer(region)

    def room(self) -> None:
        """Little enough waits to be sent."""
        on_room, self._on_room = self._on_room, None
        if on_room is not None:
            self._handle(on_room)

    def gone(self, why: str) -> None:
        """The socket is closed, and nothing is borrowed any more."""
        unsent, self._unsent = self._unsent, {}
        for _, on_sent in unsent.values():
            if on_sent is not None:
                on_sent()
        self.close(PeerLostError("peer", why))


class NativeEngine:
    """The native engine of one loop (see ``engine.Engine``).

    Args:
        loop: the loop that is told what happens.
        settings: times and limits.
        own_name: the endpoint's, for messages.

    Attributes:
        native: what drives the sockets, answers queries, and lets them be asked.

    Raises:
        OSError: the system has no descriptors left.
        SystemLimitError: it has no threads left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: RpcSettings, own_name: str) -> None:
        self._loop = loop
        try:
            self.native = RpcEngine(
                settings.heartbeat_interval_s,
                settings.heartbeat_timeout_s,
                settings.max_payload_bytes,
                settings.num_threads,
                _QUERY_FACTOR * settings.max_inflight,
                own_name,
            )
        except BlockingIOError as error:  # EAGAIN is pthread_create's
            raise SystemLimitError(f"rpc engine: can't start new thread: {error}") from error
        self._streams: dict[int, NativeStream] = {}
        # By stream, what is to be handled: the engine reads no more than 64 MiB ahead of each stream's handler.
        self._events: dict[int, deque[tuple[str, Any]]] = {}
        loop.add_reader(self.native.fileno(), self._poll)

    def attach(self, sock: socket.socket, on_frame: FrameHandler, on_closed: ClosedHandler) -> NativeStream:
        """Drive a connected socket, owned from here on."""
        tune_socket(sock)
        native = self.native.open(sock.fileno())
        sock.detach()
        stream = NativeStream(self._loop, native, on_frame, on_closed)
        self._streams[native.id] = stream
        return stream

    def _poll(self) -> None:
        try:
            for _ in range(_ROUNDS):
                self._handle_some()
                if not self._events:
                    break
        finally:
            if self._events:  # there are more, or a handler raised, which is the loop's business
                self._loop.call_soon(self._poll)

    def _handle_some(self) -> None:
        """Takes what came, and handles a few events of each stream: who sends one frame does not wait for a hundred."""
        for number, what, detail in self.native.poll():
            self._events.setdefault(number, deque()).append((what, detail))
        for number in [*self._events]:
            events = self._events[number]
            for _ in range(min(_SHARE, len(events))):
                what, detail = events.popleft()
                stream = self._streams.get(number)
                if stream is None:  # who answers queries may offer a region after the end
                    continue
                match what:
                    case "frame":
                        stream.receive(detail)
                    case "sent":
                        stream.sent(detail)
                    case "offer":
                        stream.offer(detail)
                    case "room":
                        stream.room()
                    case "malformed":
                        stream.refuse(ProtocolError(detail))
                    case "mismatch":
                        stream.refuse(VersionMismatchError(detail))
                    case "closed":
                        del self._streams[number]
                        stream.gone(detail)
            if not events:
                self._events.pop(number, None)

    def close(self) -> None:
        """End the engine's thread, and give back what it borrowed. Idempotent."""
        self._loop.remove_reader(self.native.fileno())
        self.native.close()
        self._handle_some()
        while self._events:
            self._handle_some()

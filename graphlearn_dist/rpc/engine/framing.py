"""Frames over one non-blocking stream socket, driven by an asyncio loop: the engine in Python (see ``engine``).

A frame's payload is received straight into pooled memory, and sent straight from where its segments lie. Small parts
(headers, heads, small payloads) go through one staging buffer, so that a small frame costs one system call.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..._C import Buffer as PooledBuffer
from ...config import RpcSettings
from ...errors import PeerLostError, RpcError
from ..traffic import FrameBytes
from ..wire.gld1 import (
    HEADER_BYTES,
    MAX_HEAD_BYTES,
    MAX_UNAUTHENTICATED_BYTES,
    Header,
    Kind,
    pack_frame,
    pack_head,
    pack_refusal,
    parse_header,
)
from .frame_counter import FrameCounter
from .heartbeat import Heartbeat

_STAGING_BYTES = 16 << 10
_DIRECT_BYTES = 4 << 10  # from here on a part is received without passing through the staging buffer
_ROUNDS = 32  # system calls per wake-up, so that one busy connection does not starve the others
_MAX_VECTORS = 256
# Between processes of one host: what lies in the kernel stays in a core's cache, and ten answers' worth of it does not.
_LOCAL_SEND_BUFFER_BYTES = 512 << 10

FrameHandler = Callable[[Header, Any, Any], None]
ClosedHandler = Callable[[RpcError], None]


def tune_socket(sock: socket.socket) -> None:
    """Make a connected socket non-blocking and fit for small requests and large answers."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if _is_local(sock):  # else the kernel fits the buffer to the network's delay
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_SEND_BUFFER_BYTES)


def _is_local(sock: socket.socket) -> bool:
    try:
        return sock.family == socket.AF_UNIX or sock.getpeername()[0] == sock.getsockname()[0]
    except OSError:  # the peer is gone already, which reading will tell
        return False


class Drain:
    """Those who wait until a stream has nothing queued.

    Attributes:
        waiting: of each, what is done then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.waiting: list[asyncio.Future[None]] = []

    def wait(self, *, is_empty: bool) -> asyncio.Future[None]:
        """Done at once where nothing is queued, else with the next ``report``."""
        future: asyncio.Future[None] = self._loop.create_future()
        if is_empty:
            future.set_result(None)
        else:
            self.waiting.append(future)
        return future

    def report(self) -> None:
        """Nothing is queued any more."""
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class FrameStream:
    """One socket's frames, in and out (see ``engine.Stream``). All methods must be called on the loop's thread.

    Args:
        loop: the loop that watches the socket.
        sock: a connected socket, owned from here on.
        on_frame: called with each frame's header, head and payload (None where it has none, or lies in the arena).
            An ``RpcError`` raised by it closes the stream.
        on_closed: called once, with the reason.
        settings: times of the heartbeat, and the limit of a payload once the limits are lifted.
    """

    shortcut: None = None  # everything happens on the loop's thread

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_frame: FrameHandler,
        on_closed: ClosedHandler,
        settings: RpcSettings,
    ) -> None:
        tune_socket(sock)
        self._loop = loop
        self._sock = sock
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._max_payload = settings.max_payload_bytes
        self._limited = True  # only small frames without payload until the peer is authenticated
        self.closed = False
        self._sent, self._received = FrameCounter(), FrameCounter()
        self.out_bytes = 0
        self._last_received = self._last_sent = loop.time()
        self._heartbeat = Heartbeat(settings.heartbeat_interval_s, settings.heartbeat_timeout_s, loop.time())
        # Own requests, at most as many as the peer grants; answers to at most so many, none of them begun while more
        # than 64 MiB wait here.
        self._out: deque[tuple[memoryview, Callable[[], None] | None]] = deque()
        self._writing = False
        self._drain = Drain(loop)
        self._below: tuple[int, Callable[[], None]] | None = None
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._start = self._end = 0
        self._header: Header | None = None
        self._head: memoryview | None = None
        self._payload: Any = None
        self._target = memoryview(b"")
        self._filled = 0

    def start(self) -> None:
        """Begin to receive."""
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def lift_limits(self, peer_limit_bytes: int = 0, peer_key: str = "", least_lent_bytes: int = 0) -> None:
        """The peer is known: large frames and payloads may come, and heartbeats start."""
        self._limited = False

    def beat(self, now: float, *, forgive: bool) -> None:
        """Look after the peer; called a few times per heartbeat.

        Args:
            now: the loop's time.
            forgive: this process was stopped itself.
        """
        if forgive:
            self._heartbeat.forgive(now)
        if self._limited:
            return
        verdict = self._heartbeat.check(now, self._last_received, self._last_sent, self.out_bytes)
        if verdict.dead:
            self.close(PeerLostError("peer", verdict.dead))
        elif verdict.ping:
            self._send_control(Kind.PING)

    def _send_control(self, kind: Kind) -> None:
        if not self._out:  # else what waits says as well that this side is alive
            self.send(pack_frame(kind, 0, pack_head([])))

    # --- sending -----------------------------------------------------------------------------------------------

    def send(self, frame: bytes, parts: Sequence[memoryview] = (), on_sent: Callable[[], None] | None = None) -> None:
        """Queue a frame and write what the socket takes now.

        ``on_sent`` is called when the parts' memory is needed no more: they are with the kernel, or the stream is
        closed.
        """
        if self.closed:
            if on_sent is not None:
                on_sent()
            return
        if not self._out:
            self._last_sent = self._loop.time()
        self._sent.add_frames(frame)
        views = [memoryview(frame), *parts]
        for view in views:
            self.out_bytes += view.nbytes
            self._out.append((view, None))
        self._out[-1] = (self._out[-1][0], on_sent)
        if not self._writing:
            self._writable()

    @property
    def traffic(self) -> tuple[FrameBytes, FrameBytes]:
        """What was sent and received since it opened; what is queued was sent. Bytes of TLS are not counted."""
        return self._sent.sums, self._received.sums

    def when_below(self, nbytes: int, callback: Callable[[], None]) -> None:
        """Call back once when no more than so many bytes wait to be sent, unless it closes; for one who waits."""
        self._below = nbytes, callback
        self._loop.call_soon(self._tell_room)

    def _tell_room(self) -> None:
        if self._below is not None and self.out_bytes <= self._below[0] and not self.closed:
            _, callback = self._below
            self._below = None
            try:
                callback()
            except MemoryError:
                self.close(PeerLostError("peer", "no memory for what it sent"))
            except RpcError as error:
                self.refuse(error)

    def drained(self) -> asyncio.Future[None]:
        """Done when nothing is queued, or the stream is closed."""
        return self._drain.wait(is_empty=not self._out)

    def _writable(self) -> None:
        for _ in range(_ROUNDS):
            if not self._out:
                break
            views = [entry[0] for entry, _ in zip(self._out, range(_MAX_VECTORS), strict=False)]
            try:
                count = self._sock.sendmsg(views)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.close(PeerLostError("peer", f"connection broken: {error.strerror or error}"))
                return
            self._advance(count)
        if bool(self._out) != self._writing:
            self._writing = bool(self._out)
            if self._writing:
                self._loop.add_writer(self._sock.fileno(), self._writable)
            else:
                self._loop.remove_writer(self._sock.fileno())
        if not self._out:
            self._drain.report()
        if self._below is not None and self.out_bytes <= self._below[0]:
            self._loop.call_soon(self._tell_room)

    def _advance(self, count: int) -> None:
        self._last_sent = self._loop.time()
        self.out_bytes -= count
        while self._out:
            view, on_sent = self._out[0]
            if view.nbytes > count:
                if count:
                    self._out[0] = (view[count:], on_sent)
                return
            count -= view.nbytes
            self._out.popleft()
            if on_sent is not None:
                on_sent()

    # --- receiving ---------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            for _ in range(_ROUNDS):
                if self.closed or not self._receive():
                    return
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(PeerLostError("peer", f"connection broken: {error.strerror or error}"))
        except MemoryError:
            self.close(PeerLostError("peer", "no memory for what it sent"))
        except RpcError as error:
            self.refuse(error)

    def _receive(self) -> bool:
        """One system call and what follows from it; whether there may be more to read now."""
        direct = self._header is not None and self._target.nbytes - self._filled >= _DIRECT_BYTES
        room = self._target[self._filled :] if direct else self._staging[self._end :]
        count = self._sock.recv_into(room)
        if count == 0:
            self.close(PeerLostError("peer", "connection closed"))
            return False
        self._last_received = self._loop.time()
        if direct:
            self._filled += count
        else:
            self._end += count
        more = count == room.nbytes
        self._parse()
        return more

    def _parse(self) -> None:
        while not self.closed:
            if self._header is None:
                if self._end - self._start < HEADER_BYTES:
                    break
                self._begin_frame()
            staged = min(self._end - self._start, self._target.nbytes - self._filled)
            if staged:
                self._target[self._filled : self._filled + staged] = self._staging[self._start : self._start + staged]
                self._filled += staged
                self._start += staged
            if self._filled < self._target.nbytes:
                break
            self._part_complete()
        rest = self._end - self._start
        if self._start:
            self._staging[:rest] = self._staging[self._start : self._end]
            self._start, self._end = 0, rest

    def _begin_frame(self) -> None:
        max_head = MAX_UNAUTHENTICATED_BYTES if self._limited else MAX_HEAD_BYTES
        header = parse_header(
            self._staging[self._start : self._start + HEADER_BYTES],
            max_head=max_head,
            max_payload=0 if self._limited else self._max_payload,
        )
        self._start += HEADER_BYTES
        self._header = header
        self._target = memoryview(bytearray(header.padded_head_len))
        self._filled = 0

    def _part_complete(self) -> None:
        header = self._header
        if header is None:
            return
        if self._head is None:
            self._head = self._target[: header.head_len]
            if header.inline_len:
                self._payload = PooledBuffer(header.inline_len)
                self._target = memoryview(self._payload)
                self._filled = 0
                return
        self._received.add(header)
        head, payload = self._head, self._payload
        self._header = self._head = self._payload = None
        self._target = memoryview(b"")
        self._filled = 0
        if self._limited or header.kind not in (Kind.PING, Kind.PONG):
            self._on_frame(header, head, payload)
        elif header.kind == Kind.PING:
            self._send_control(Kind.PONG)

    # --- the end -----------------------------------------------------------------------------------------------

    def refuse(self, error: RpcError) -> None:
        """Say why, as far as the socket takes it at once, and close."""
        if not self._out and not self.closed:
            try:
                self._sock.send(pack_refusal(error))
            except OSError as broken:
                error = type(error)(f"{error} (and the peer is gone: {broken.strerror})")
        self.close(error)

    def close(self, error: RpcError) -> None:
        """Close the socket, let go of everything queued, and report ``error``. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        queued, self._out, self.out_bytes = self._out, deque(), 0
        self._target, self._payload, self._head = memoryview(b""), None, None
        for _, on_sent in queued:
            if on_sent is not None:
                on_sent()
        self._drain.report()
        self._below = None
        on_closed = self._on_closed
        del self._on_frame, self._on_closed  # they lead back here: a connection must not wait for a garbage collection
        on_closed(error)

"""What moves a connection's frames: the two engines, which speak the same wire, and how one is chosen.

An engine owns sockets: it frames, receives into pooled memory, sends from where the bytes lie, and keeps heartbeats.
All else (handshake, requests, shared memory) is the connection's, whichever engine it has. The native engine needs no
interpreter: it reads small frames on the thread that wants them, and does all else on one of its own. The one in Python
does it on the loop's thread, and is the reference.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from ...config import RpcSettings, rpc_engine
from ...errors import RpcError
from ..traffic import FrameBytes
from .framing import ClosedHandler, FrameHandler, FrameStream
from .native import NativeEngine
from .tls import TlsSocket, TlsStream

_TICKS_PER_HEARTBEAT = 4
_LATE_S = 0.5  # a tick that comes so late means that this process was stopped


class Shortcut(Protocol):
    """What threads other than the loop's may do with a stream themselves. All methods may be called from any thread."""

    def send(self, frame: bytes, parts: Sequence[memoryview] = (), on_sent: Callable[[], None] | None = None) -> None:
        """See ``Stream.send``; ``on_sent`` may be called on this thread or the loop's."""

    def expect_answer(self, request_id: int) -> None:
        """The calling thread is about to wait for an answer; ``await_answer`` or ``forget_answer`` must follow."""

    def await_answer(self, request_id: int, timeout_s: float, on_frame: FrameHandler) -> None:
        """Wait for the answer, and handle its frame on this thread by ``on_frame``, as the loop would by its own.

        Returns too when it was released, or the time is over. An answer that would overtake earlier frames, or lies in
        shared memory, is handled by the loop instead.
        """

    def forget_answer(self, request_id: int) -> None:
        """It is expected no more."""

    def release_answer(self, request_id: int) -> bool:
        """Let go the thread that waits for an answer, if there is one. False: it has its answer."""


class Stream(Protocol):
    """One socket's frames, in and out. All methods must be called on the loop's thread."""

    @property
    def shortcut(self) -> Shortcut | None:
        """For threads other than the loop's; None where all goes through the loop."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""

    @property
    def out_bytes(self) -> int:
        """Bytes that wait to be sent."""

    @property
    def traffic(self) -> tuple[FrameBytes, FrameBytes]:
        """What was sent and received since it opened; what is queued was sent. From any thread."""

    def lift_limits(self, peer_limit_bytes: int = ..., peer_key: str = ..., least_lent_bytes: int = ...) -> None:
        """The peer is known, and takes payloads of so many bytes: large frames may come, and heartbeats start."""

    def send(self, frame: bytes, parts: Sequence[memoryview] = (), on_sent: Callable[[], None] | None = None) -> None:
        """Send a frame, or queue it.

        ``on_sent`` is called when the parts' memory is needed no more: they are with the kernel, or the stream is
        closed.
        """

    def when_below(self, nbytes: int, callback: Callable[[], None]) -> None:
        """Call back once when no more than so many bytes wait to be sent, unless it closes; for one who waits."""

    def drained(self) -> asyncio.Future[None]:
        """Done when nothing is queued, or the stream is closed."""

    def refuse(self, error: RpcError) -> None:
        """Say why, as far as the socket takes it at once, and close."""

    def close(self, error: RpcError) -> None:
        """Close the socket, let go of everything queued, and report ``error``. Idempotent."""


class Engine(Protocol):
    """Drives sockets. All methods must be called on the loop's thread."""

    def attach(self, sock: socket.socket, on_frame: FrameHandler, on_closed: ClosedHandler) -> Stream:
        """Drive a connected socket, owned from here on.

        Args:
            sock: the socket.
            on_frame: called with each frame's header, head and payload (None where it has none, or lies in shared
                memory), but for heartbeats. An ``RpcError`` raised by it closes the stream.
            on_closed: called once, with the reason.
        """

    def close(self) -> None:
        """Let go of everything; streams are closed before. Idempotent."""


class PythonEngine:
    """Sockets on the loop's own thread.

    Args:
        loop: the loop that watches the sockets.
        settings: times and limits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: RpcSettings) -> None:
        self._loop = loop
        self._settings = settings
        self._streams: set[FrameStream] = set()
        self._period_s = settings.heartbeat_interval_s / _TICKS_PER_HEARTBEAT
        self._last_tick = loop.time()
        self._timer = loop.call_later(self._period_s, self._tick)

    def attach(self, sock: socket.socket, on_frame: FrameHandler, on_closed: ClosedHandler) -> FrameStream:
        """See ``Engine``."""

        def closed(error: RpcError) -> None:
            self._streams.discard(stream)
            on_closed(error)

        kind = TlsStream if isinstance(sock, TlsSocket) else FrameStream
        stream = kind(self._loop, sock, on_frame, closed, self._settings)
        stream.start()
        self._streams.add(stream)
        return stream

    def _tick(self) -> None:
        now = self._loop.time()
        was_stopped = now - self._last_tick > self._period_s + _LATE_S
        self._last_tick = now
        for stream in list(self._streams):
            stream.beat(now, forgive=was_stopped)
        self._timer = self._loop.call_later(self._period_s, self._tick)

    def close(self) -> None:
        """See ``Engine``."""
        self._timer.cancel()


def engine_name(settings: RpcSettings, *, with_tls: bool) -> str:
    """The engine that the settings ask for, else the environment, else the native one.

    With TLS it is the one in Python, whatever the environment says.
    """
    return settings.engine or ("python" if with_tls else rpc_engine())


def open_engine(name: str, loop: asyncio.AbstractEventLoop, settings: RpcSettings, own_name: str) -> Engine:
    """The engine of that name, for an endpoint's loop; on the loop's thread."""
    return PythonEngine(loop, settings) if name == "python" else NativeEngine(loop, settings, own_name)

"""TLS 1.3 between hosts, for the engine in Python. Unix sockets have no need of it: the kernel keeps others out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ...config import RpcSettings, TlsSettings
from ...errors import AuthenticationError, InvalidArgumentError, ProtocolError
from ..peers.handshake import MAX_TIME_S
from ..wire.gld1 import MAGIC, pack_refusal
from .framing import FrameStream

_RECORD_BYTES = 16 << 10  # the most that one record holds
_LINGER_S = 3.0  # for a busy host; most close at once
_BURST_BYTES = 1 << 20  # per call, so that one busy connection does not starve the others


class TlsSocket(ssl.SSLSocket):
    """A non-blocking TLS connection with the methods of a socket that a ``FrameStream`` uses."""

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """As a socket's, over as many records as there are."""
        room = memoryview(buffer)[:_BURST_BYTES]
        filled = 0
        try:
            while filled < room.nbytes and (count := super().recv_into(room[filled:])):
                filled += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not filled:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):  # what the other side thinks of our certificate comes this late
                raise AuthenticationError(f"the peer refused: {_why(error)}") from error
            raise
        return filled

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        """As a socket's, a record at a time.

        A record that does not fit must be offered again with the same bytes: it is always the next 16 KB.
        """
        waiting = deque(memoryview(buffer) for buffer in buffers)
        sent = 0
        try:
            while waiting and sent < _BURST_BYTES:
                count = super().send(_next_record(waiting))
                _advance(waiting, count)
                sent += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not sent:
                raise BlockingIOError from None
        return sent


def _next_record(waiting: deque[memoryview]) -> bytes | memoryview:
    if waiting[0].nbytes >= _RECORD_BYTES:
        return waiting[0][:_RECORD_BYTES]
    parts: list[memoryview] = []
    room = _RECORD_BYTES
    for view in waiting:
        parts.append(view[:room])
        room -= parts[-1].nbytes
        if not room:
            break
    return b"".join(parts)


def _advance(waiting: deque[memoryview], count: int) -> None:
    while waiting and count >= waiting[0].nbytes:
        count -= waiting.popleft().nbytes
    if count:
        waiting[0] = waiting[0][count:]


class TlsStream(FrameStream):
    """A ``FrameStream`` over a ``TlsSocket``: bytes may be waiting above the socket, where no event tells of them."""

    def start(self) -> None:
        """Begin to receive."""
        super().start()
        self._loop.call_soon(self._readable)

    def _readable(self) -> None:
        super()._readable()
        if not self.closed and isinstance(self._sock, TlsSocket) and self._sock.pending():
            self._loop.call_soon(self._readable)


class Tls:
    """Makes TLS connections out of TCP ones. On the loop's thread.

    Args:
        settings: the certificates.

    Raises:
        InvalidArgumentError: a file is missing or malformed.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._dialling = _context(ssl.PROTOCOL_TLS_CLIENT, settings)
        self._dialling.check_hostname = settings.check_host
        self._accepting: ssl.SSLContext | None = None
        if settings.certificate is not None:
            self._accepting = _context(ssl.PROTOCOL_TLS_SERVER, settings)
            self._accepting.num_tickets = 0  # every connection is authenticated anew
            if settings.require_certificate:
                self._accepting.verify_mode = ssl.CERT_REQUIRED

    def check_may_listen(self) -> None:
        """``InvalidArgumentError`` where there is no certificate to show to those who connect."""
        self._accepting_context()

    def _accepting_context(self) -> ssl.SSLContext:
        if self._accepting is None:
            raise InvalidArgumentError("tls: a process that listens needs a certificate and its key, got neither")
        return self._accepting

    async def connect(self, sock: socket.socket, host: str) -> TlsSocket:
        """The TLS connection over a connected socket, which it owns from here on.

        Raises:
            AuthenticationError: the certificate there is not one of the authority's, or not made out for ``host``.
            ProtocolError: whoever answers does not speak TLS.
            OSError: the connection broke.
        """
        wrapped = _wrap(self._dialling, sock, server_side=False, host=host)
        try:
            await _shake_hands(wrapped)
        except BaseException as error:
            wrapped.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise AuthenticationError(f"TLS: {host}: {error.verify_message}") from error
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                raise ProtocolError(f"{host}: {_why(error)}; do both sides use TLS?") from error
            raise
        return wrapped

    async def accept(self, sock: socket.socket, refuse: Callable[[str], None]) -> TlsSocket | None:
        """The TLS connection over an accepted socket, which it owns from here on.

        None where it came to nothing: the other side has no certificate of the authority's, speaks something else, or
        takes longer than 3 s; ``refuse`` is told why.
        """
        wrapped = _wrap(self._accepting_context(), sock, server_side=True)
        is_met = False
        try:
            is_met = await asyncio.wait_for(_answer(wrapped, refuse), MAX_TIME_S)
        except asyncio.TimeoutError:
            refuse(f"TLS: no handshake within {MAX_TIME_S:g} s")
        finally:
            if not is_met:
                wrapped.close()
        return wrapped if is_met else None


def open_tls(settings: RpcSettings) -> Tls | None:
    """What the settings ask for, else the environment; None where neither does."""
    tls = settings.tls or TlsSettings.from_environ()
    return Tls(tls) if tls is not None else None


def _why(error: Exception) -> str:
    if not isinstance(error, ssl.SSLError):
        return str(error)
    return "TLS: " + (error.reason or str(error)).replace("_", " ").lower()


def _context(protocol: int, settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslsocket_class = TlsSocket
    try:
        context.load_verify_locations(settings.authority)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(str(path) for path in (settings.authority, settings.certificate, settings.key) if path)
        raise InvalidArgumentError(f"tls: cannot use {files}: {error}") from error
    return context


def _wrap(context: ssl.SSLContext, sock: socket.socket, *, server_side: bool, host: str | None = None) -> TlsSocket:
    try:
        sock.setblocking(False)
        return context.wrap_socket(  # type: ignore[return-value]  # see sslsocket_class
            sock, server_side=server_side, server_hostname=host, do_handshake_on_connect=False
        )
    except BaseException:
        sock.close()
        raise


async def _answer(sock: TlsSocket, refuse: Callable[[str], None]) -> bool:
    """The accepting side's handshake; whether it came to an end, else ``refuse`` was told why."""
    try:
        await _wait_for(sock, to_write=False)
        if socket.socket.recv(sock, len(MAGIC), socket.MSG_PEEK) == MAGIC:
            raise ProtocolError("TLS: this side expects it, and got a plain connection")
        await _shake_hands(sock)
    except (OSError, ProtocolError) as error:
        refuse(_why(error))
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            if isinstance(error, ProtocolError):  # one of ours, which understands these words
                socket.socket.send(sock, pack_refusal(error))
            await asyncio.wait_for(_linger(sock), _LINGER_S)
        return False
    return True


async def _linger(sock: TlsSocket) -> None:
    """Reads on until the other side has closed: with bytes unread, closing would take back what it was told."""
    sock.shutdown(socket.SHUT_WR)
    while True:
        await _wait_for(sock, to_write=False)
        if not socket.socket.recv(sock, _RECORD_BYTES):
            return


async def _shake_hands(sock: ssl.SSLSocket) -> None:
    while True:
        try:
            sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            await _wait_for(sock, to_write=False)
        except ssl.SSLWantWriteError:
            await _wait_for(sock, to_write=True)


async def _wait_for(sock: socket.socket, *, to_write: bool) -> None:
    """Until a socket can be read, or written."""
    loop = asyncio.get_running_loop()
    watch, unwatch = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    ready: asyncio.Future[None] = loop.create_future()
    watch(sock.fileno(), _settle, ready)
    try:
        await ready
    finally:
        unwatch(sock.fileno())


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""The socket between a server and one of its sampling workers: small messages both ways."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import Any

from ...rpc.wire.codec import decode_blob, encode

_LENGTH = struct.Struct("<I")


class Control(asyncio.Protocol):
    """One end of the socket pair. On one asyncio loop."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._messages: deque[bytearray] = deque()
        self._changed: asyncio.Future[None] | None = None  # somebody waits for a message
        self._is_over = False

    @classmethod
    async def open(cls, sock: socket.socket) -> Control:
        """Takes over a connected socket."""
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        _, control = await loop.create_unix_connection(cls, sock=sock)
        return control

    def write(self, data: bytes) -> None:
        """Sends bytes, or queues them; ``ConnectionResetError`` where the other side is gone."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the other side has closed the socket")
        self._transport.write(data)

    async def receive(self) -> bytearray | None:
        """The next message; None when the other side has closed, or ``feed_end`` was called. One caller at a time."""
        while not self._messages and not self._is_over:
            self._changed = asyncio.get_running_loop().create_future()
            try:
                await self._changed
            finally:
                self._changed = None
        return self._messages.popleft() if self._messages else None

    def feed_end(self) -> None:
        """Makes ``receive`` see the end; sending still works."""
        self._is_over = True
        self._wake()

    def close(self) -> None:
        """Closes the socket. Idempotent."""
        if self._transport is not None:
            self._transport.close()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # --- what the loop tells -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self._buffer += data
        begin = end = 0
        while not self._is_over and len(self._buffer) >= (begin := end) + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, begin)
            end = begin + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            begin = end
            self._messages.append(self._buffer[end - length : end])
            self._wake()
        del self._buffer[:begin]

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self.feed_end()
        self._transport = None


def send_message(control: Control, message: Any) -> None:
    """Sends a registered message; ``ConnectionResetError`` where the other side is gone."""
    blob = b"".join(encode(message).write_parts())
    control.write(_LENGTH.pack(len(blob)) + blob)


async def receive_message(control: Control) -> Any:
    """The next message; None when the other side has closed."""
    blob = await control.receive()
    return None if blob is None else decode_blob(blob)

"""The socket between a server and one of its sampling workers: small messages both ways."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from ...rpc.wire.codec import decode_blob, encode

_LENGTH = struct.Struct("<I")
_LIMIT_BYTES = 1 << 31


class Control:
    """One end of the socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> Control:
        """Takes over a connected socket."""
        sock.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=sock))

    async def notify(self) -> None:
        """Says that there is something in the ring: an empty message."""
        self.writer.write(_LENGTH.pack(0))
        await self.writer.drain()

    def feed_end(self) -> None:
        """Makes ``receive_message`` see the end of the stream; sending still works."""
        if not self.reader.at_eof():
            self.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a StreamReader takes nothing after it
        self.reader.feed_eof()

    def close(self) -> None:
        """Closes the socket. Idempotent."""
        self.writer.close()


NOTIFICATION = object()


async def send_message(control: Control, message: Any) -> None:
    """Sends a registered message."""
    blob = b"".join(encode(message).write_parts())
    control.writer.write(_LENGTH.pack(len(blob)) + blob)
    await control.writer.drain()


async def receive_message(control: Control) -> Any:
    """The next message; ``NOTIFICATION`` for an empty one, None when the other side has closed."""
    try:
        (length,) = _LENGTH.unpack(await control.reader.readexactly(_LENGTH.size))
        if length == 0:
            return NOTIFICATION
        return decode_blob(bytearray(await control.reader.readexactly(length)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None

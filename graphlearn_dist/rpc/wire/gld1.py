"""GLD1, the wire format: one 32-byte header, a head, zeros up to a multiple of 64, a payload. Little-endian.

====== ===== =========================================================
offset type  field
====== ===== =========================================================
0      4s    magic ``GLD1``
4      u8    version
5      u8    kind (``Kind``)
6      u16   flags: 1 the payload lies in the sender's arena
8      u64   request id (odd: opened by the connecting side; even: by the accepting side; 0: none; with the highest
             bit: of a query)
16     u32   bytes of the head, at most 65 536
20     u32   milliseconds left until the deadline; 0: none
24     u64   bytes of the payload
====== ===== =========================================================

The head is a u16 length, that many bytes of msgpack about the frame itself (a list), and then, for REQ, RES and
EVENT, the head of the value that the payload belongs to (see ``codec``).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from ..._C import pack_frame as pack_frame  # what leaves and arrives is packed and split natively
from ..._C import pack_head as pack_head
from ..._C import split_head as split_head
from ...errors import AuthenticationError, ProtocolError, RpcError, VersionMismatchError
from .encoded import ALIGNMENT, Buffer

MAGIC = b"GLD1"
VERSION = 1
HEADER_BYTES = 32
MAX_HEAD_BYTES = 65_536
MAX_UNAUTHENTICATED_BYTES = 1024
FLAG_ARENA = 1
MAX_DEADLINE_MS = 0xFFFF_FFFF

_HEADER = struct.Struct("<4sBBHQIIQ")


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    CHALLENGE = 2
    AUTH = 3
    WELCOME = 4
    REQUEST = 5
    RESPONSE = 6
    ERROR = 7
    CANCEL = 8
    QUERY = 9  # a request that is answered without the interpreter; so are its CANCEL, RESPONSE and ERROR
    PING = 10
    PONG = 11
    ARENA = 12
    RELEASE = 13
    EVENT = 14
    BYE = 15


KINDS = {int(kind): kind for kind in Kind}


class Header(NamedTuple):
    """A parsed frame header; the names are those of the table above."""

    kind: Kind
    flags: int
    request_id: int
    head_len: int
    deadline_ms: int
    payload_len: int

    @property
    def in_arena(self) -> bool:
        """Whether the payload lies in the sender's arena instead of following the head."""
        return bool(self.flags & FLAG_ARENA)

    @property
    def inline_len(self) -> int:
        """Bytes of payload that follow the head."""
        return 0 if self.in_arena else self.payload_len

    @property
    def padded_head_len(self) -> int:
        """Bytes of the head with the zeros after it."""
        return self.head_len + head_padding(self.head_len)


# A ``Header`` of its fields in one tuple, without a step of Python's.
header_of: Callable[[tuple[int, ...]], Header] = functools.partial(tuple.__new__, Header)


def head_padding(head_len: int) -> int:
    """Zeros after a head, so that header and head together fill a multiple of 64."""
    return -(HEADER_BYTES + head_len) % ALIGNMENT


def read_header(frames: bytes, at: int) -> Header:
    """The header of a frame of this side's own, which begins there."""
    _, _, kind, *fields = _HEADER.unpack_from(frames, at)
    return Header(KINDS[kind], *fields)


def parse_header(data: Buffer, *, max_head: int = MAX_HEAD_BYTES, max_payload: int) -> Header:
    """Read and check a header.

    Raises:
        VersionMismatchError: another version of the protocol.
        ProtocolError: not this protocol, an unknown kind, or larger than allowed here.
    """
    magic, version, kind, flags, request_id, head_len, deadline_ms, payload_len = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError(f"not a GLD1 frame: it starts with the bytes {magic.hex()}")
    # An ERROR frame without a request is how a peer of another version says so: it must stay readable.
    if version != VERSION and not (kind == Kind.ERROR and request_id == 0):
        raise VersionMismatchError(f"the peer speaks version {version} of the protocol, this side speaks {VERSION}")
    if kind not in KINDS:
        raise ProtocolError(f"unknown frame kind {kind}")
    if head_len > max_head:
        raise ProtocolError(f"head: expected at most {max_head} bytes, got {head_len}")
    if payload_len > max_payload:
        raise ProtocolError(f"payload: expected at most {max_payload} bytes, got {payload_len}")
    return Header(KINDS[kind], flags, request_id, head_len, deadline_ms, payload_len)


# --- refusals: the one ERROR frame that goes out before a connection is closed --------------------------------

_REFUSALS: dict[str, type[RpcError]] = {
    "version": VersionMismatchError,
    "authentication": AuthenticationError,
    "protocol": ProtocolError,
}


def pack_refusal(error: RpcError) -> bytes:
    """The frame that tells a peer why its connection is about to be closed."""
    code = next((code for code, cls in _REFUSALS.items() if type(error) is cls), "protocol")
    return pack_frame(Kind.ERROR, 0, pack_head([code, str(error)[:400]]))


def read_refusal(head: Buffer, peer: str) -> RpcError:
    """The error that a peer's refusal stands for."""
    meta, _ = split_head(head)
    code, text = (*meta, "", "")[:2]
    return _REFUSALS.get(str(code), ProtocolError)(f"{peer} refused the connection: {text!s:.400}")

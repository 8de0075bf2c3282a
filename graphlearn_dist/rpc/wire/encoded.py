"""A value ready to be sent: its head, its segments, and the one blob they can be stored as."""

from __future__ import annotations

import itertools
import struct
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from ... import _C
from ...errors import ProtocolError

Buffer: TypeAlias = Any  # anything with the buffer protocol; typing has no name for it before Python 3.12

ALIGNMENT = 64
_numbers = itertools.count(1)
_regions: weakref.WeakValueDictionary[int, SharedRegion] = weakref.WeakValueDictionary()
MAX_HEAD_BYTES = _C.Codec.MAX_HEAD_BYTES
_BLOB_PREFIX = struct.Struct("<4sIQ")
_BLOB_MAGIC = b"GLDB"


def padded(nbytes: int) -> int:
    """``nbytes`` rounded up to the alignment of segments."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class SharedRegion:
    """Shared memory with payloads in it, that may be lent to peers of this host while it is open.

    Args:
        path: ``/proc/<pid>/fd/<n>`` of a sealed memfd.
        size: its bytes.
        nonce: what stands at its beginning.

    Attributes:
        number: no other region of this process has it.
    """

    def __init__(self, path: str, size: int, nonce: bytes) -> None:
        self.number = next(_numbers)
        _regions[self.number] = self
        self.path = path
        self.size = size
        self.nonce = nonce
        self.closed = False
        self._watchers: list[Callable[[SharedRegion], None]] = []

    @staticmethod
    def of(number: int) -> SharedRegion | None:
        """That of a number, if it is still used."""
        return _regions.get(number)

    def watch(self, on_closed: Callable[[SharedRegion], None]) -> None:
        """Calls ``on_closed`` when the region is closed."""
        self._watchers.append(on_closed)

    def unwatch(self, on_closed: Callable[[SharedRegion], None]) -> None:
        """Forgets a watcher, if there is such a one."""
        if on_closed in self._watchers:
            self._watchers.remove(on_closed)

    def close(self) -> None:
        """Nothing new is lent from it. Idempotent."""
        self.closed = True
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher(self)


class Encoded(NamedTuple):
    """A value ready to be sent. (A frozen dataclass takes five times as long to make, and each small call makes two.)

    Attributes:
        head: msgpack of the tree and the segment descriptors, at most 60 KiB.
        segments: byte views, each keeping its memory alive; sent from where they lie.
        nbytes: bytes of the payload, each segment padded to a multiple of 64.
        on_released: called once, by the transport, when the segments' memory is needed no more.
        place: where the payload lies in shared memory that a peer of this host may map: (region, offset), or None.
    """

    head: bytes
    segments: tuple[memoryview, ...]
    nbytes: int
    on_released: Callable[[], None] | None = None
    place: tuple[SharedRegion, int] | None = None

    def payload_parts(self) -> list[memoryview]:
        """The payload as byte views in order, padding included."""
        parts: list[memoryview] = []
        for segment in self.segments:
            parts.append(segment)
            if segment.nbytes % ALIGNMENT:
                parts.append(_ZEROS[: -segment.nbytes % ALIGNMENT])
        return parts

    def write_parts(self) -> list[memoryview]:
        """The value as one blob, in pieces to be written one after the other; ``split_blob`` reads it back."""
        start = _BLOB_PREFIX.pack(_BLOB_MAGIC, len(self.head), self.nbytes) + self.head
        return [memoryview(start + bytes(-len(start) % ALIGNMENT)), *self.payload_parts()]

    @property
    def blob_bytes(self) -> int:
        """Bytes of the blob that ``write_parts`` makes; a multiple of 64."""
        return padded(_BLOB_PREFIX.size + len(self.head)) + self.nbytes


_ZEROS = memoryview(bytes(ALIGNMENT))


def split_blob(blob: Buffer) -> tuple[memoryview, memoryview]:
    view = memoryview(blob).cast("B")
    if view.nbytes < _BLOB_PREFIX.size:
        raise ProtocolError(f"blob: expected at least {_BLOB_PREFIX.size} bytes, got {view.nbytes}")
    magic, head_len, nbytes = _BLOB_PREFIX.unpack_from(view)
    start = padded(_BLOB_PREFIX.size + head_len)
    if magic != _BLOB_MAGIC or head_len > MAX_HEAD_BYTES or start + nbytes > view.nbytes:
        raise ProtocolError(f"blob: not an encoded value (magic {magic!r}, head {head_len}, payload {nbytes} bytes)")
    return view[_BLOB_PREFIX.size : _BLOB_PREFIX.size + head_len], view[start : start + nbytes]


def release(encoded: Encoded | None) -> None:
    """Say that the memory of a value is needed no more."""
    if encoded is not None and encoded.on_released is not None:
        encoded.on_released()

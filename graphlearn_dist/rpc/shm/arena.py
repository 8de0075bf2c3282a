"""Pooled shared memory between the processes of one host.

A sender owns one anonymous file (memfd, sealed against shrinking and growing); its peers map it read-only. A payload
is copied into a slot of it and out of it again, twice per side at most, without passing through a socket. The
receiver copies at once and gives the slot back, so that a tensor which is kept for long never blocks the arena.
Nothing has a name in the file system: a killed process leaves nothing behind. Memory is committed when it is first
used, and slots at low addresses are used first, so that they are warm.
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from ... import _C
from ..._C import Buffer as PooledBuffer
from ..._C import copy_parts
from ...errors import ProtocolError
from ..wire.codec import byte_array

_GRANULE = 4096
_NONCE_BYTES = 16
_PATH = re.compile(r"/proc/[0-9]+/fd/[0-9]+")


class SlotAllocator:
    """First fit at the lowest address, over ``capacity`` bytes; free neighbours are merged."""

    def __init__(self, start: int, capacity: int) -> None:
        self._free: list[tuple[int, int]] = [(start, capacity - start)] if capacity > start else []  # offset, size
        self._used: dict[int, int] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes in slots handed out."""
        return sum(self._used.values())

    def allocate(self, nbytes: int) -> int | None:
        """The offset of a slot, or None when there is no room."""
        size = -(-nbytes // _GRANULE) * _GRANULE
        for index, (offset, room) in enumerate(self._free):
            if room >= size:
                if room == size:
                    del self._free[index]
                else:
                    self._free[index] = (offset + size, room - size)
                self._used[offset] = size
                return offset
        return None

    def release(self, offset: int) -> None:
        """Give a slot back; ``ProtocolError`` where there is none at ``offset``."""
        size = self._used.pop(offset, None)
        if size is None:
            raise ProtocolError(f"arena: there is no slot at {offset}")
        merged: list[tuple[int, int]] = []
        for block in sorted([*self._free, (offset, size)]):
            if merged and merged[-1][0] + merged[-1][1] == block[0]:
                merged[-1] = (merged[-1][0], merged[-1][1] + block[1])
            else:
                merged.append(block)
        self._free = merged


class SendingArena:
    """The memory this process lends to its peers on this host.

    Args:
        capacity_bytes: size of the arena; committed as it is used.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = -(-capacity_bytes // _GRANULE) * _GRANULE
        self.nonce = secrets.token_bytes(_NONCE_BYTES)
        self._fd = _C.create_memory_file("gld-arena", self.capacity_bytes)
        try:
            self._map = mmap.mmap(self._fd, self.capacity_bytes)
        except BaseException:
            os.close(self._fd)
            raise
        self._map[:_NONCE_BYTES] = self.nonce
        self._bytes: Any = byte_array(self._map)
        self._slots = SlotAllocator(_GRANULE, self.capacity_bytes)
        # Gives the offset of a slot to be written by the caller (see ``view``), or None when the arena has no room.
        self.reserve = self._slots.allocate

    @property
    def path(self) -> str:
        """Where a process of the same user and host opens it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @property
    def used_bytes(self) -> int:
        """Bytes in slots that peers have not given back yet."""
        return self._slots.used_bytes

    def put(self, parts: Sequence[memoryview], nbytes: int) -> int | None:
        """Copy ``parts`` into a slot; its offset, or None when the arena has no room."""
        offset = self.reserve(nbytes)
        if offset is not None:
            copy_parts(parts, self._bytes[offset : offset + nbytes])
        return offset

    def view(self, offset: int, nbytes: int) -> memoryview:
        """The memory of a slot."""
        return memoryview(self._map)[offset : offset + nbytes]

    def release(self, offset: int) -> None:
        """Free the slot at ``offset``."""
        self._slots.release(offset)

    def close(self) -> None:
        """Give the memory back. Peers that still map it keep what they have. Idempotent."""
        if self._fd < 0:
            return
        self._bytes = None  # the array is a view into the map, which cannot be closed before
        self._map.close()
        os.close(self._fd)
        self._fd = -1


@contextmanager
def open_sealed(path: str, size: int, nonce: bytes, *, writable: bool = False) -> Iterator[BinaryIO]:
    """Opens shared memory that a peer announced, and checks that it is what the peer says.

    Args:
        path: ``/proc/<pid>/fd/<n>``.
        size: bytes it must have.
        nonce: what stands at its beginning.
        writable: open it for writing too.

    Raises:
        ProtocolError: it is something else, or could change its size under the reader.
        OSError: it cannot be opened (another container, another user).
    """
    if _PATH.fullmatch(path) is None:
        raise ProtocolError(f"arena: expected a path like /proc/1/fd/2, got {path!r:.100}")
    mode = os.O_RDWR if writable else os.O_RDONLY
    with open(os.open(path, mode | os.O_CLOEXEC | os.O_NONBLOCK), "r+b" if writable else "rb", buffering=0) as file:
        # fails with EINVAL on anything but a memfd; without both seals a truncating peer could kill this process
        if not _C.has_fixed_size(file.fileno()):
            raise ProtocolError("arena: expected a file sealed against changes of its size")
        if os.fstat(file.fileno()).st_size != size or size < _GRANULE:
            raise ProtocolError(f"arena: expected {size} bytes, found {os.fstat(file.fileno()).st_size}")
        if os.pread(file.fileno(), _NONCE_BYTES, 0) != nonce:  # another process's: another pid namespace
            raise ProtocolError("arena: this is not the peer's arena")
        yield file


class ReceivingArena:
    """A peer's arena, mapped read-only.

    Args:
        path: what the peer announced.
        size: its size in bytes.
        nonce: what stands at its beginning.

    Raises:
        ProtocolError: it is not what the peer says, or could change its size under the reader.
        OSError: it cannot be opened (another container, another user).
    """

    def __init__(self, path: str, size: int, nonce: bytes) -> None:
        with open_sealed(path, size, nonce) as descriptor:
            self._map = mmap.mmap(descriptor.fileno(), size, prot=mmap.PROT_READ)
        self._bytes: Any = byte_array(self._map)
        self._size = size

    def take(self, offset: int, nbytes: int) -> PooledBuffer:
        """A pooled copy of ``nbytes`` at ``offset``; ``ProtocolError`` where that lies outside."""
        if offset < _GRANULE or nbytes < 1 or offset + nbytes > self._size:
            raise ProtocolError(f"arena: {nbytes} bytes at {offset} lie outside of {self._size}")
        buffer = PooledBuffer(nbytes)
        copy_parts([self._bytes[offset : offset + nbytes]], buffer)
        return buffer

    def close(self) -> None:
        """Unmap it. Idempotent."""
        self._bytes = None
        self._map.close()

"""A channel over shared memory, between processes of one host."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from .. import _C
from ..errors import InvalidArgumentError
from ..utils.device import can_pin
from ..utils.units import parse_size
from .base import ChannelBase, SampleMessage


def _seconds(timeout_ms: float | None) -> float | None:
    return None if timeout_ms is None else timeout_ms / 1000


class ShmChannel(ChannelBase):
    """A bounded queue in anonymous shared memory: many producing processes, one consuming process.

    Pickle it (as an argument of a child process, say) to use it elsewhere; the process that pickled it must still
    live when it is unpickled. Memory is taken when it is first needed, leaves no file behind however the processes
    end, and what was received is copied out, so keeping messages never blocks the channel.

    Args:
        capacity: most messages that wait at a time.
        shm_size: most bytes that wait at a time, such as ``"256MB"``; also the largest possible message.
    """

    def __init__(self, capacity: int = 128, shm_size: str | int = "256MB") -> None:
        if not isinstance(capacity, int) or isinstance(capacity, bool) or not 1 <= capacity < 1 << 31:
            raise InvalidArgumentError(f"capacity: expected a number of messages, at least 1, got {capacity!r}")
        self._ring = _C.ShmRing(parse_size(shm_size, name="shm_size"), capacity)
        self._pin = False

    @classmethod
    def _open(cls, path: str, pin: bool) -> ShmChannel:
        channel = cls.__new__(cls)
        channel._ring = _C.ShmRing.open(path)
        channel._pin = pin
        return channel

    def __reduce__(self) -> tuple[Any, ...]:
        return ShmChannel._open, (self._ring.path, self._pin)

    def __enter__(self) -> ShmChannel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def pin_memory(self) -> None:
        """From now on give received tensors in page-locked memory, which copies to the GPU without waiting.

        Where torch sees no CUDA device, a warning says once that nothing changes.
        """
        self._pin = can_pin()

    def send(self, msg: SampleMessage, *, timeout_ms: float | None = None, **kwargs: Any) -> None:
        """Copy a message into the channel; waits while it is full.

        Args:
            msg: any message that ``rpc.wire`` knows.
            timeout_ms: how long to wait for room, in milliseconds; None waits until there is room, or the channel is
                closed, or its consumer's process is gone.

        Raises:
            MessageTooLargeError: it can never fit.
            ChannelTimeoutError: there was no room in time.
            ChannelClosedError: the channel is closed, or its consumer is gone.
            ChannelError: the host has no memory left for it.
        """
        from ..rpc.wire.codec import encode

        self._ring.send(encode(msg).write_parts(), _seconds(timeout_ms))

    def recv(self, timeout_ms: float | None = None, **kwargs: Any) -> SampleMessage:
        """The next message, in the order sent.

        Args:
            timeout_ms: how long to wait for one, in milliseconds; None waits until one comes or the channel is closed.

        Raises:
            ChannelTimeoutError: none came in time.
            ChannelClosedError: the channel is closed and everything sent before was received.
        """
        from ..rpc.wire.codec import decode_blob

        # One copy, into recycled memory: messages may be kept as long as the caller likes.
        with self._ring.recv(_seconds(timeout_ms)) as waiting:
            blob = self._new_blob(len(waiting))
            waiting.copy_to(blob)
        message: SampleMessage = decode_blob(blob)
        return message

    def _new_blob(self, num_bytes: int) -> memoryview:
        if self._pin:
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy().data
        return memoryview(_C.Buffer(num_bytes))

    def empty(self) -> bool:
        """Whether no message waits."""
        return bool(self._ring.pending == 0)

    def close(self) -> None:
        """No more sends, in any process; everybody who waits wakes. What was sent can still be received. Idempotent."""
        self._ring.close()

    @property
    def closed(self) -> bool:
        """Whether any side has closed it."""
        return bool(self._ring.closed)

    @property
    def pending(self) -> int:
        """Messages that wait."""
        return int(self._ring.pending)

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait."""
        return int(self._ring.pending_bytes)

    @property
    def capacity_bytes(self) -> int:
        """Most bytes that can wait."""
        return int(self._ring.capacity_bytes)

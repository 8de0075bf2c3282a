"""Memory that streams still read when its owner is dropped."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class UsedMemory(Protocol):
    """What is asked of a tensor."""

    @property
    def is_cuda(self) -> bool:
        """Whether it lies on a GPU."""

    def untyped_storage(self) -> Any:
        """All of the memory that it is a part of."""

    def record_stream(self, stream: Any) -> None:
        """Has torch give its memory to nobody before the stream has done what it was given until then."""


# Torch takes every use of memory that it is told of while any thread captures a CUDA graph for one by that graph, and
# forgets it when the capture ends. Memory that other threads were told to keep would be another batch's too early.
_captures = threading.RLock()
_num_captures = 0  # of the thread that has the lock, one in another
_dropped: deque[tuple[Iterable[torch.cuda.Stream], Sequence[UsedMemory]]] = deque()  # of which torch is yet to be told


@contextmanager
def capturing() -> Iterator[None]:
    """While a CUDA graph is captured: other threads hand out batches afterwards, and what is dropped stays so long."""
    global _num_captures
    try:
        with _captures:
            _num_captures += 1
            try:
                yield
            finally:
                _num_captures -= 1
                _tell_of_dropped()
    finally:  # what was dropped since then, too
        _tell_of_dropped()


def record_uses(memory: Iterable[UsedMemory], stream: Any) -> None:
    """Has torch give memory to nobody before the stream has done what it will have been given when it is dropped.

    Waits while another thread is ``capturing``.
    """
    with _captures:
        for tensor in memory:
            tensor.record_stream(stream)
    _tell_of_dropped()


def _tell_of_dropped() -> None:
    """Tells torch of the uses of what was dropped; who has the lock does it on giving that back."""
    while _dropped and _captures.acquire(blocking=False):
        try:
            if _num_captures > 0:
                return
            if _dropped:  # the garbage collector may have come between
                streams, memory = _dropped.popleft()
                for stream in streams:
                    for tensor in memory:
                        tensor.record_stream(stream)
        finally:
            _captures.release()


class StreamUses:
    """The streams that read what one object holds; when it is dropped, they are done before others have its memory.

    Torch gives the memory of a tensor that dies to the next one of the stream that it was made on, and page-locked
    memory to anybody, whatever other streams still have to do. Memory of a GPU is kept from others by torch then, and
    nobody waits. For page-locked memory, which torch knows nothing of, and for memory of another process, whose torch
    knows nothing of streams here, the host waits for the streams: at the drop of what is large and dropped rarely, and
    not for each batch.

    Args:
        owner: whose drop it is about; nothing that holds it may be among ``memory``.
        device: where the streams are. On the CPU device nothing is noted.
        memory: the tensors.
    """

    def __init__(self, owner: object, device: torch.device, memory: Iterable[UsedMemory] = ()) -> None:
        self._device = device
        self._streams: dict[int, torch.cuda.Stream] = {}  # by handle; single operations on a dict are atomic
        self._memory = list(memory)
        # At exit all memory goes with the process.
        weakref.finalize(owner, _leave, self._streams, self._memory).atexit = False

    def note(self) -> int:
        """Notes the caller's current stream, which uses the memory from now on; gives its handle, 0 on the host."""
        if self._device.type == "cpu":
            return 0
        stream = torch.cuda.current_stream(self._device)
        handle = int(stream.cuda_stream)
        self._streams[handle] = stream
        return handle

    def add(self, *memory: UsedMemory) -> None:
        """Takes more tensors, which streams that were noted may use as well."""
        self._memory.extend(memory)


# Where memory of other processes lay; what torch puts there later is waited for, which takes time and does no harm.
_received: set[int] = set()


def note_received(tensor: UsedMemory) -> None:
    """Notes that a tensor lies in the memory of another process, which gives it to others when it is dropped here."""
    _received.add(tensor.untyped_storage().data_ptr())


def _leave(streams: Mapping[int, torch.cuda.Stream], memory: Sequence[UsedMemory]) -> None:
    if not all(tensor.is_cuda and tensor.untyped_storage().data_ptr() not in _received for tensor in memory):
        for stream in streams.values():
            stream.synchronize()
        return
    # The garbage collector may be who drops it, in a thread that must not wait for one that captures.
    _dropped.append(([*streams.values()], memory))
    _tell_of_dropped()


def wait_at_drop(owner: object, device: torch.device) -> StreamUses:
    """As ``StreamUses``, of memory that nothing is known of, as that of a captured graph: the host waits."""
    return StreamUses(owner, device, [torch.empty(0)])

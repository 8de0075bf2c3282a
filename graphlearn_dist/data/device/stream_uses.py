"""Memory that streams still read when its owner is dropped."""

from __future__ import annotations

import atexit
import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
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


# While a thread captures a CUDA graph, torch takes every use of memory that it is told of for one by that graph, and
# forgets it when the capture ends: memory that other threads were told to keep would be another batch's too early. And
# CUDA fails the capture when that thread waits for a stream, or anybody for the stream that is captured.
_captures = threading.RLock()
_num_captures = 0  # of the thread that has the lock, one in another
_deferred: deque[Callable[[], object]] = deque()  # what is to be done when nobody captures


@contextmanager
def capturing() -> Iterator[None]:
    """While a CUDA graph is captured: other threads hand out batches afterwards, and what is dropped stays so long.

    The garbage collector stays away: what it would find may own graphs and page-locked memory.
    """
    global _num_captures
    try:
        with _captures:
            _num_captures += 1
            collects = gc.isenabled()
            gc.disable()
            try:
                yield
            finally:
                if collects:
                    gc.enable()
                _num_captures -= 1
                _do_deferred()
    finally:  # what was dropped since then, too
        _do_deferred()


def after_captures(do: Callable[[], object]) -> None:
    """Does what must not be done while a CUDA graph is captured: now, or when that is over, in whichever thread."""
    _deferred.append(do)
    _do_deferred()


def record_uses(memory: Iterable[UsedMemory], stream: Any) -> None:
    """Has torch give memory to nobody before the stream has done what it will have been given when it is dropped.

    Waits while another thread is ``capturing``.
    """
    with _captures:
        for tensor in memory:
            tensor.record_stream(stream)
    _do_deferred()


def _do_deferred() -> None:
    """Does what was put off; who has the lock does it on giving that back."""
    while _deferred and _captures.acquire(blocking=False):
        try:
            if _num_captures > 0:
                return
            if _deferred:  # the garbage collector may have come between
                _deferred.popleft()()
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
        keeping: what keeps memory as the streams read it, such as locks of its pages.
    """

    def __init__(
        self, owner: object, device: torch.device, memory: Iterable[UsedMemory] = (), keeping: Iterable[object] = ()
    ) -> None:
        self._device = device
        self._streams: dict[int, torch.cuda.Stream] = {}  # by handle; single operations on a dict are atomic
        self._memory = list(memory)
        self._keeping = list(keeping)
        weakref.finalize(owner, after_captures, partial(_leave, self._streams, self._memory, self._keeping))

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

    def keep(self, *keeping: object) -> None:
        """Takes more of what keeps memory."""
        self._keeping.extend(keeping)


_exiting = threading.Event()  # all memory goes with the process, and nobody waits
atexit.register(_exiting.set)

# Where memory of other processes lay; what torch puts there later is waited for, which takes time and does no harm.
_received: set[int] = set()


def note_received(tensor: UsedMemory) -> None:
    """Notes that a tensor lies in the memory of another process, which gives it to others when it is dropped here."""
    _received.add(tensor.untyped_storage().data_ptr())


def _leave(streams: Mapping[int, torch.cuda.Stream], memory: Sequence[UsedMemory], keeping: list[object]) -> None:
    is_told = all(tensor.is_cuda and tensor.untyped_storage().data_ptr() not in _received for tensor in memory)
    for stream in [] if _exiting.is_set() else list(streams.values()):
        if not is_told:
            stream.synchronize()
            continue
        for tensor in memory:
            tensor.record_stream(stream)
    keeping.clear()


def wait_at_drop(owner: object, device: torch.device) -> StreamUses:
    """As ``StreamUses``, of memory that nothing is known of, as that of a captured graph: the host waits."""
    return StreamUses(owner, device, [torch.empty(0)])

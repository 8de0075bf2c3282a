"""Memory that streams still read when its owner is dropped."""

from __future__ import annotations

import _thread
import gc
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch

from ...utils.system.lifetime import threads

logger = logging.getLogger(__name__)


class UsedMemory(Protocol):
    """What is asked of a tensor."""

    @property
    def is_cuda(self) -> bool:
        """Whether it lies on a GPU."""

    def untyped_storage(self) -> Any:
        """All of the memory that it is a part of."""

    def record_stream(self, stream: Any) -> None:
        """Has torch give its memory to nobody before the stream has done what it was given until then."""


class Event(Protocol):
    """What a stream reaches when all before it is done."""

    def query(self) -> bool:
        """Whether it was reached."""


# While a thread captures a CUDA graph, torch takes every use of memory that it is told of for one by that graph, and
# forgets it when the capture ends: memory that other threads were told to keep would be another batch's too early. And
# CUDA fails the capture when that thread waits for a stream, anybody for the stream that is captured, or for the GPU.
# So captures exclude all of that, which excludes nothing but captures: one wait may be for what another thread will do.
#
# Finalizers come here from the garbage collector, at any moment: they take no lock and wait for nobody. Each side notes
# what it does before it looks at the other, so that one of them sees the other; whoever ends something looks whether
# anything was put off meanwhile. Captures are rare: who waits for one, or to begin one, looks again now and then.
class _Captures:
    """Who captures, and who does what captures exclude."""

    def __init__(self) -> None:
        self.begin = threading.Lock()  # of captures alone
        self.capturer: int | None = None  # a thread
        self.depth = 0  # of its captures
        self.turned_off_gc = False
        self.others: set[tuple[int, object]] = set()  # thread and token; single operations on a set are atomic

    def has_begun(self, thread: int) -> bool:
        """Whether a thread captures from now on: not while another one does, or does what that excludes."""
        with self.begin:
            if self.capturer not in (None, thread):
                return False
            self.capturer = thread
            if all(of == thread for of, _ in list(self.others)):
                self.depth += 1
                return True
            if self.depth == 0:
                self.capturer = None
            return False


_LOOK_AGAIN_S = 0.001
_MOST_PAUSE_S = 0.05
_captures = _Captures()
_deferred: deque[Callable[[], object]] = deque()  # what is to be done when nobody captures
_of_thread = threading.local()  # ``doing``: it does what was put off
_kept_for_ever: list[object] = []  # what nobody knows the end of


@contextmanager
def capturing() -> Iterator[None]:
    """While a CUDA graph is captured: other threads hand out batches afterwards, and what is dropped stays so long.

    The garbage collector stays away: what it would find may own graphs and page-locked memory.
    """
    captures, thread = _captures, threading.get_ident()
    depth = captures.depth if captures.capturer == thread else 0
    try:
        while not captures.has_begun(thread):
            _do_deferred()
            time.sleep(_LOOK_AGAIN_S)
        if captures.depth == 1 and gc.isenabled():
            captures.turned_off_gc = True
            gc.disable()
        yield
    finally:
        # No call comes before the end is noted: an interrupt of the user would be raised there.
        turns_on = False
        if captures.capturer == thread:
            captures.depth = depth
            if depth == 0:
                turns_on = captures.turned_off_gc
                captures.turned_off_gc = False
                captures.capturer = None
        try:
            if turns_on:
                gc.enable()
        finally:
            _do_deferred()


@contextmanager
def between_captures() -> Iterator[None]:
    """Has no other thread capture a CUDA graph meanwhile; waits while one does. Whoever captures may be here, too."""
    captures, thread = _captures, threading.get_ident()
    token = thread, object()
    try:
        captures.others.add(token)
        while captures.capturer not in (None, thread):
            captures.others.discard(token)
            time.sleep(_LOOK_AGAIN_S)
            captures.others.add(token)
        yield
    finally:
        captures.others.discard(token)
        _do_deferred()


def after_captures(do: Callable[[], object]) -> None:
    """Does what must not be done while a CUDA graph is captured: now, or when that is over, in whichever thread.

    What it raises is logged: nobody waits for it.
    """
    _deferred.append(do)
    _do_deferred()


def at_drop(owner: object, do: Callable[[], object]) -> None:
    """Does this ``after_captures`` when ``owner`` is dropped; at exit nobody does, since all goes with the process.

    A fork, where the garbage of this process may be found, keeps what it holds for ever: it can ask CUDA for nothing.
    """
    weakref.finalize(owner, _do_in, os.getpid(), do).atexit = False


def _do_in(process: int, do: Callable[[], object]) -> None:
    if os.getpid() == process:
        after_captures(do)
    else:
        _kept_for_ever.append(do)


def let_go_after(events: Sequence[Event], held: list[Any]) -> None:
    """Empties a list of what streams read until these events: now, or in a thread that waits for them.

    For drops: the garbage collector finds them in any thread, also in one that does what a stream waits for. Where it
    cannot be known that the streams are done, what they read stays for ever.
    """
    try:
        if all(event.query() for event in events):
            held.clear()
        else:
            _thread.start_new_thread(_wait_and_let_go, (events, held))
    except BaseException:
        _kept_for_ever.append(held)
        raise


def _wait_and_let_go(events: Sequence[Event], held: list[Any]) -> None:
    """Looks now and then: the end of the process would wait for a thread in a call of CUDA's, or end it there."""
    pause_s = _LOOK_AGAIN_S
    try:
        while not all(event.query() for event in events):
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)
    except Exception:
        _kept_for_ever.append(held)
        logger.exception("what a stream read when it was dropped is kept for ever")
        return
    with threads.work:
        after_captures(held.clear)


def record_uses(memory: Iterable[UsedMemory], stream: Any) -> None:
    """Has torch give memory to nobody before the stream has done what it will have been given when it is dropped.

    Waits while another thread is ``capturing``.
    """
    with between_captures():
        for tensor in memory:
            tensor.record_stream(stream)


def _do_deferred() -> None:
    """Does what was put off, unless somebody captures, who does it then."""
    if getattr(_of_thread, "doing", False):  # what is dropped by it comes next
        return
    _of_thread.doing = True
    try:
        while _deferred and _do_one():
            pass
    finally:
        _of_thread.doing = False


def _do_one() -> bool:
    """Does the first, and whether nobody captured."""
    captures, token = _captures, (threading.get_ident(), object())
    try:
        captures.others.add(token)
        if captures.capturer is not None:
            return False
        try:
            do = _deferred.popleft()
        except IndexError:  # another thread does it
            return True
        do()
    except Exception:
        logger.exception("what was put off until no CUDA graph is captured has failed")
    finally:
        captures.others.discard(token)
    return True


def _forget_parent() -> None:
    """In a fork: threads of the parent are not here, and its memory of GPUs is none of this process's business."""
    global _captures
    _kept_for_ever.extend(_deferred)
    _deferred.clear()
    _of_thread.doing = False
    if _captures.turned_off_gc:
        gc.enable()
    _captures = _Captures()


os.register_at_fork(after_in_child=_forget_parent)


class StreamUses:
    """The streams that read what one object holds; when it is dropped, they are done before others have its memory.

    Torch gives the memory of a tensor that dies to the next one of the stream that it was made on, and page-locked
    memory to anybody, whatever other streams still have to do. Memory of a GPU is kept from others by torch then, and
    nobody waits. Page-locked memory, which torch knows nothing of, and memory of another process, whose torch knows
    nothing of streams here, stays until the streams are done; what is large and dropped rarely, and nothing of a batch.

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
        self._process = os.getpid()
        self._streams: dict[int, torch.cuda.Stream] = {}  # by handle; single operations on a dict are atomic
        self._memory = list(memory)
        self._keeping = list(keeping)
        at_drop(owner, partial(_leave, self._streams, self._memory, self._keeping))

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

    def outlive(self, *held: object) -> None:
        """Keeps what may hold the owner, in whose ``__del__`` this is called, until the streams are done."""
        _do_in(self._process, partial(_leave, self._streams, self._memory, [*held]))


# Where memory of other processes lay; what torch puts there later is waited for, which takes time and does no harm.
_received: set[int] = set()


def note_received(tensor: UsedMemory) -> None:
    """Notes that a tensor lies in the memory of another process, which gives it to others when it is dropped here."""
    _received.add(tensor.untyped_storage().data_ptr())


def _leave(streams: Mapping[int, torch.cuda.Stream], memory: list[UsedMemory], keeping: list[object]) -> None:
    is_told = all(tensor.is_cuda and tensor.untyped_storage().data_ptr() not in _received for tensor in memory)
    held: list[Any] = [memory, [*keeping]]
    keeping.clear()
    try:
        events = [] if is_told else [stream.record_event() for stream in streams.values()]
        for stream in streams.values() if is_told else ():
            for tensor in memory:
                tensor.record_stream(stream)
    except BaseException:  # a stream may still read it
        _kept_for_ever.append(held)
        raise
    let_go_after(events, held)


def wait_at_drop(owner: object, device: torch.device) -> StreamUses:
    """As ``StreamUses``, of memory that nothing is known of, as that of a captured graph."""
    return StreamUses(owner, device, [torch.empty(0)])

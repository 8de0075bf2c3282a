"""Batches on their way to a device, beside the work of whoever trains on them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from ... import _C
from ...utils.device import as_current, device_number, get_available_device, wait_for_stream
from .compressed_edges import CompressedEdges
from .own_streams import OwnStream
from .stream_uses import Event, at_drop, let_go_after, record_uses

T = TypeVar("T")

_of_thread = threading.local()  # its stream, which is nobody else's while the thread lives


@dataclass(frozen=True)
class Copy:
    """A batch that is being copied: it is on the device when ``done`` is, or already where that is None.

    ``tensors`` are those that it has there then.
    """

    batch: Any
    done: torch.cuda.Event | None = None
    tensors: Sequence[torch.Tensor] = ()


class HeldUntilDone:
    """Holds what a stream still reads. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[tuple[Event, Any]] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, what: Any, done: Event) -> None:
        """Holds ``what`` until ``done``; lets go what is done by now, as far as it is known without asking of each."""
        with self._lock:
            while self._held and self._held[0][0].query():
                self._held.popleft()
            self._held.append((done, what))

    def leave(self) -> None:
        """Lets go of all when it is done: memory that a copy still reads is nobody else's before."""
        with self._lock:
            held = [*self._held]
            self._held.clear()
        let_go_after([done for done, _ in held], held)  # several threads begin copies: they are held in any order


class DeviceCopies:
    """Copies PyG objects to a device; to a GPU from pinned memory on a stream of its own. Thread-safe.

    With a GPU, the core's pool is page-locked from now on: batches that were made or received there are copied from
    where they lie, others by way of torch's pinned memory.

    Args:
        device: where batches go; None leaves them where they are.

    Raises:
        InvalidArgumentError: there is no such GPU.
    """

    def __init__(self, device: torch.device | str | None) -> None:
        self.device = None if device is None else get_available_device(device)
        self._stream: torch.cuda.Stream | None = None  # of copies
        self._making: OwnStream | None = None  # of what background threads have a GPU make
        self._number = -1  # of the GPU
        if self.device is not None and self.device.type == "cuda":
            # With its number: the current GPU of background threads is another one.
            self._number = device_number(self.device)
            self.device = torch.device("cuda", self._number)
            self._copying, self._making = OwnStream(self.device), OwnStream(self.device)
            self._stream = self._copying.stream
            if _C.cuda_is_built():
                _C.lock_pool_pages(self._number)
        self._sources = HeldUntilDone()
        at_drop(self, self._sources.leave)

    def current(self) -> AbstractContextManager[Any]:
        """Makes the GPU the current one of a thread that makes batches for it, in a ``with`` block."""
        return nullcontext() if self.device is None else as_current(self.device)

    @property
    def takes_parts(self) -> bool:
        """Whether ``begin`` makes matrices of ``CompressedEdges``, where these are then."""
        return self._stream is not None

    def beside_training(self, begin: Callable[[int], None] | None) -> Callable[[int], None] | None:
        """What each background thread calls first, with its number, where all it makes goes through ``self.begin``.

        It calls ``begin`` in turn. The threads' current stream is then one of their own, which sees what the caller's
        was given until now. On the default stream, where a new thread is, batches would be made behind the training
        step.
        """
        making = self._making
        if making is None:
            return begin
        making.stream.wait_stream(torch.cuda.current_stream(self.device))

        def enter(number: int) -> None:
            torch.cuda.set_stream(making.stream)
            _of_thread.making = making
            if begin is not None:
                begin(number)

        return enter

    def begin(self, batch: Any) -> Copy:
        """Begins to copy a batch, without waiting for a GPU.

        What a GPU has made of it, on the caller's current stream, stays where it is.
        """
        if self.device is None:
            return Copy(batch)
        if self._stream is None:
            return Copy(batch.to(self.device))
        made_on, stream = torch.cuda.current_stream(self._number), self._stream
        values = _values(batch)
        sources = _tensors(values)  # PyG puts the copies in their place, in the batch that was given
        if all(tensor.is_cuda and tensor.device == self.device for tensor in sources):
            if any(isinstance(value, CompressedEdges) for value in values):
                sources = _tensors(_values(_apply_once(batch, lambda tensor: tensor, is_there=True)))
            return Copy(batch, made_on.record_event(), sources)
        if any(tensor.is_cuda for tensor in sources):
            stream.wait_stream(made_on)
        with self.current(), torch.cuda.stream(stream):
            try:
                change = lambda tensor: _pinned(tensor).to(self.device, non_blocking=True)  # noqa: E731
                moved = _apply_once(batch, change, is_there=True)
            finally:  # some copies have begun, too, where one could not
                done = stream.record_event()
                # Of its own pinned memory torch knows when the copies are done, of the pool's it does not.
                self._sources.hold(sources, done)
        return Copy(moved, done, _tensors(_values(moved)))

    def made(self, batch: Any, tensors: Iterable[torch.Tensor]) -> Copy:
        """What a GPU makes on the caller's current stream, where it is, and the tensors of it: for ``finish``.

        What another GPU makes than batches go to is waited for.
        """
        parts = [part for part in _tensors(tensors) if part.is_cuda]
        for other in {part.device for part in parts} - {self.device}:
            wait_for_stream(other)
        here = [part for part in parts if part.device == self.device]
        return Copy(batch, torch.cuda.current_stream(self._number).record_event(), here) if here else Copy(batch)

    def finish(self, copy: Copy) -> Any:
        """The batch, for work that the caller puts on its current stream from now on. The host does not wait."""
        if copy.done is not None:
            stream = torch.cuda.current_stream(self._number)
            stream.wait_event(copy.done)
            record_uses(copy.tensors, stream)  # their memory belongs to the stream that they were made on
        return copy.batch


def pinned(batch: Any) -> Any:
    """A batch with its host memory page-locked, by a copy; what lies on a GPU stays there."""
    return _apply_once(batch, _pinned)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_cuda else tensor.pin_memory()


def _parts(value: torch.Tensor | CompressedEdges) -> list[torch.Tensor]:
    """The tensors that a sparse CSR tensor consists of, or that there are of one; itself of any other."""
    if isinstance(value, CompressedEdges):
        return value.tensors
    if value.layout is torch.sparse_csr:
        return [value.crow_indices(), value.col_indices(), value.values()]
    return [value]


def _change_parts(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A tensor of changed parts: torch cannot pin a sparse one, nor follow it to a stream."""
    if tensor.layout is not torch.sparse_csr:
        return change(tensor)
    begins, sources, values = map(change, _parts(tensor))
    return torch.sparse_csr_tensor(begins, sources, values, tensor.shape, check_invariants=False)


def _apply_once(batch: Any, change: Callable[[torch.Tensor], torch.Tensor], *, is_there: bool = False) -> Any:
    """The batch with every tensor changed; one that it has under several names is changed once.

    Where it ``is_there`` then, matrices are made of what there is of them.
    """
    changed: dict[int, tuple[Any, Any]] = {}  # with the value, whose id is another's once it is gone
    errors: list[Exception] = []

    def change_once(value: Any) -> Any:
        if not isinstance(value, (torch.Tensor, CompressedEdges)):
            return value
        if id(value) not in changed:
            if isinstance(value, torch.Tensor):
                changed[id(value)] = value, _change_parts(value, change)
            else:
                try:
                    parts = value.changed(change)
                    changed[id(value)] = value, parts.matrix() if is_there else parts
                except Exception as error:  # which PyG takes for a value that cannot be changed
                    errors.append(error)
                    raise
        return changed[id(value)][1]

    applied = batch.apply(change_once)
    if errors:
        raise errors[0]
    return applied


def _values(batch: Any) -> list[torch.Tensor | CompressedEdges]:
    found: list[torch.Tensor | CompressedEdges] = []
    kinds = (torch.Tensor, CompressedEdges)
    batch.apply_(lambda value: found.append(value) if isinstance(value, kinds) else None)
    return found


def _tensors(values: Iterable[torch.Tensor | CompressedEdges]) -> list[torch.Tensor]:
    return [part for value in values for part in _parts(value)]


class OneAhead(Generic[T]):
    """Takes items, each before the one before it is given, where it is there by then.

    An error in taking an item is raised in its place, and the next call goes on behind it.

    Args:
        take: takes the next item, and waits for it.
        is_there: whether that would not have to wait.
    """

    def __init__(self, take: Callable[[], T], is_there: Callable[[], bool]) -> None:
        self._take = take
        self._is_there = is_there
        self._ahead: Future[T] | None = None

    def next(self) -> T:
        """The next item; raises what taking it raised."""
        ahead, self._ahead = self._ahead, None
        item = self._take() if ahead is None else ahead.result()
        if self._is_there():
            self._ahead = self._taken()
        return item

    def _taken(self) -> Future[T]:
        outcome: Future[T] = Future()
        try:
            outcome.set_result(self._take())
        except Exception as error:
            outcome.set_exception(error)
        return outcome

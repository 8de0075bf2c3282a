"""Huge pages for tensors that are read at random.

Memory that a caller brings, and shared memory, has pages of 4 KiB, of which the processor knows the places of a few
thousand. Rows that are read at random from gigabytes of them take 1.2 to 2.5 times as long as from huge pages.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque

import torch

from .. import _C

_LEAST_BYTES = 32 << 20  # less has its places known, or nearly
_BYTES_AT_ONCE = 32 << 20  # then it is asked whether the tensor lives

_Range = tuple[int, int]  # address, and bytes


class HugePages:
    """Moves tensors into huge pages, one after the other, in a thread that ends when there are no more.

    It never holds a tensor: who gives one up has its memory back at once, and a thread that the end of the interpreter
    stops has none to free. A range that is gone, or another's, by the time it is moved does no harm.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[_Range] = deque()
        self._asked: dict[_Range, weakref.ref[torch.Tensor]] = {}  # of tensors that live, moved or not
        self._runs = False

    def move(self, tensor: torch.Tensor) -> None:
        """Has a tensor moved, once, unless it is gone by then."""
        place = tensor.data_ptr(), tensor.nbytes

        def forget(gone: weakref.ref[torch.Tensor]) -> None:  # in the midst of anything
            if self._asked.get(place) is gone:
                self._asked.pop(place, None)

        with self._changed:
            if place in self._asked:
                return
            self._asked[place] = weakref.ref(tensor, forget)
            self._waiting.append(place)
            if not self._runs:
                try:
                    threading.Thread(target=self._run, name="gld-huge-pages", daemon=True).start()
                    self._runs = True
                except RuntimeError:  # there may be no more threads now: who asks again may find one
                    while self._waiting:
                        self._asked.pop(self._waiting.popleft(), None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether all that was asked for until now is done within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._runs, timeout_s)

    def _run(self) -> None:
        while (place := self._next()) is not None:
            try:
                self._move(*place)
            except MemoryError:  # the next one may have enough
                continue

    def _next(self) -> _Range | None:
        with self._changed:
            if self._waiting:
                return self._waiting.popleft()
            self._runs = False
            self._changed.notify_all()
            return None

    def _move(self, begin: int, nbytes: int) -> None:
        at, page = begin, _C.huge_page_bytes()
        while at < begin + nbytes and (begin, nbytes) in self._asked:
            end = min((at + _BYTES_AT_ONCE) // page * page, begin + nbytes)
            _C.move_to_huge_pages(at, end - at)
            at = end


_of_process = HugePages()


def _start_anew() -> None:
    """A fork has no thread that moves, and its memory is shared with its parent: that stays as it is."""
    global _of_process
    _of_process = HugePages()


os.register_at_fork(after_in_child=_start_anew)


def read_at_random(*tensors: torch.Tensor | None) -> None:
    """Has large tensors in host memory moved into huge pages, in the background; addresses and values stay.

    Nothing is done for those below 32 MiB, on a GPU, or where the system gives nobody huge pages.
    """
    for tensor in tensors:
        if tensor is not None and not tensor.is_cuda and tensor.nbytes >= _LEAST_BYTES and _C.huge_page_bytes():
            _of_process.move(tensor)


def wait_until_moved(timeout_s: float | None = None) -> bool:
    """Whether all that was asked for until now is done within so many seconds."""
    return _of_process.wait(timeout_s)

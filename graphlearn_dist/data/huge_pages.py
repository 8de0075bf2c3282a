"""Huge pages for tensors that are read at random.

Memory that a caller brings, and shared memory, has pages of 4 KiB, of which the processor knows the places of a few
thousand. Rows that are read at random from gigabytes of them take about 1.7 times as long as from huge pages.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque

import torch

from .. import _C

_LEAST_BYTES = 32 << 20  # less has its places known, or nearly
_BYTES_AT_ONCE = 32 << 20  # while which a tensor is kept


class HugePages:
    """Moves tensors into huge pages, one after the other, in a thread that ends when there are no more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[weakref.ref[torch.Tensor]] = deque()
        self._runs = False

    def move(self, tensor: torch.Tensor) -> None:
        """Has a tensor moved, unless it is gone by then."""
        with self._changed:
            self._waiting.append(weakref.ref(tensor))
            if not self._runs:
                try:
                    threading.Thread(target=self._run, name="gld-huge-pages", daemon=True).start()
                    self._runs = True
                except RuntimeError:  # there may be no more threads: pages stay as they are
                    self._waiting.clear()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether all that was asked for until now is done within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._runs, timeout_s)

    def _run(self) -> None:
        while (tensor := self._next()) is not None:
            _move(tensor)

    def _next(self) -> weakref.ref[torch.Tensor] | None:
        with self._changed:
            if self._waiting:
                return self._waiting.popleft()
            self._runs = False
            self._changed.notify_all()
            return None


def _move(kept: weakref.ref[torch.Tensor]) -> None:
    """Piece by piece: who gives a tensor up has its memory back soon."""
    begin, page = 0, _C.huge_page_bytes()
    while (tensor := kept()) is not None and begin < tensor.data_ptr() + tensor.nbytes:
        begin = begin or tensor.data_ptr()
        end = (begin + _BYTES_AT_ONCE) // page * page
        _C.move_to_huge_pages(begin, min(end, tensor.data_ptr() + tensor.nbytes) - begin)
        begin = end
        del tensor


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

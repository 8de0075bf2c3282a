"""Memory that is lent out, and comes back when the last tensor over it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ... import _C


class Loans:
    """What a loop has lent.

    A tensor dies in the middle of somebody's code. No Python code runs there: an exception in it, such as that of a
    Ctrl-C which arrives just then, would be printed and forgotten. The loop is told instead (``csrc/channel/loans.h``).

    Args:
        loop: what calls back; all but ``lend`` is for its thread.

    Raises:
        OSError: no descriptors are left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._native = _C.Loans()
        self._out: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._native.fileno(), self._take)

    def lend(self, memory: Any, on_returned: Callable[[], None]) -> _C.LentMemory:
        """The bytes of a contiguous buffer as another buffer; ``on_returned`` follows when nobody uses that any more.

        From any thread.
        """
        lent = self._native.lend(memory)
        self._out[lent.number] = on_returned
        return lent

    def _take(self) -> None:
        for number in self._native.take():
            self._loop.call_soon(self._out.pop(number))

    def close(self) -> None:
        """What is out stays usable, and nobody is told of its return. Idempotent."""
        self._loop.remove_reader(self._native.fileno())
        self._out.clear()

"""Memory that is lent out, and comes back when the last tensor over it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from ... import _C
from ..engine.threads import post

Lender: TypeAlias = Callable[[list[Any]], None]


class Loans:
    """What a loop has lent.

    A tensor dies in the middle of somebody's code. No Python code runs there: an exception in it, such as that of a
    Ctrl-C which arrives just then, would be printed and forgotten. The loop is told instead (``csrc/channel/loans.h``),
    a few milliseconds later, unless ``take`` is called before.

    Args:
        loop: what calls back.

    Raises:
        OSError: no descriptors are left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._native = _C.Loans()
        self._out: dict[int, tuple[Lender, Any]] = {}
        loop.add_reader(self._native.fileno(), self._tell)

    def lend(self, memory: Any, lender: Lender, place: Any) -> _C.LentMemory:
        """The bytes of a contiguous buffer as another buffer.

        When nobody uses that any more, ``lender`` is told its place, with those of others, on the loop; unless it takes
        them. From any thread.
        """
        lent = self._native.lend(memory)
        self._out[lent.number] = lender, place
        return lent

    def take(self, lender: Lender) -> list[Any]:
        """The places of this lender that came back and were not told; others are told theirs. From any thread."""
        mine: list[Any] = []
        for other, places in self._returned().items():
            if other == lender:
                mine = places
            else:
                post(self._loop, other, places)
        return mine

    def _returned(self) -> dict[Lender, list[Any]]:
        found: dict[Lender, list[Any]] = {}
        for number in self._native.take():
            lender, place = self._out.pop(number)
            found.setdefault(lender, []).append(place)
        return found

    def _tell(self) -> None:
        for lender, places in self._returned().items():
            self._loop.call_soon(lender, places)

    def close(self) -> None:
        """What is out stays usable, and nobody is told of its return. Idempotent."""
        self._loop.remove_reader(self._native.fileno())
        self._out.clear()

"""Flow control of a loader's batches: what a server may send of them is counted in bytes, and granted by the reader."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ...errors import SamplingWorkerError


class ByteCredit:
    """What may be sent of one run's batches to the one who reads them. On one asyncio loop.

    Batches go in their order, so that none takes the room of one that is read before it. The next one goes when it fits
    into ``limit_bytes`` beside those that were sent and not read; whatever its size if all of these are read after it.

    Args:
        limit_bytes: most bytes of batches on their way to the reader, or with it and not read.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._asked: list[int] = []  # for which batches, ascending; they were not sent
        self._sent: list[tuple[int, int]] = []  # index, bytes, ascending; as long as the reader has requests under way
        self._sent_bytes = 0
        self._changed = asyncio.Event()
        self._why_closed = ""

    @asynccontextmanager
    async def turn(self, index: int) -> AsyncIterator[None]:
        """Entered when no earlier batch is asked for; one batch at a time is on its way from its worker to ``send``.

        An earlier batch that is asked for later, since its request was overtaken, need not wait for the end of this
        turn: its worker has no room for later batches as long as it is there.
        """
        insort(self._asked, index)
        try:
            await self._until(lambda: self._asked[0] == index)
            yield
        finally:
            self._asked.remove(index)
            self._changed.set()

    async def send(self, index: int, nbytes: int) -> None:
        """Waits until a batch may be sent, and counts it; within its turn.

        Raises:
            SamplingWorkerError: the run was ended meanwhile.
        """
        await self._until(lambda: self._asked[0] == index and self._has_room(index, nbytes))
        insort(self._sent, (index, nbytes))
        self._sent_bytes += nbytes

    def _has_room(self, index: int, nbytes: int) -> bool:
        is_next = not self._sent or index < self._sent[0][0]
        return is_next or self._sent_bytes + nbytes <= self._limit_bytes

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while True:
            self._check_open()
            if is_so():
                return
            self._changed.clear()
            await self._changed.wait()

    def grant(self, oldest: int) -> None:
        """The reader says which batch it reads next: it has read all before."""
        while self._sent and self._sent[0][0] < oldest:
            self._sent_bytes -= self._sent.pop(0)[1]
        self._changed.set()

    def close(self, why: str) -> None:
        """Nothing more is sent; who waits fails with ``why``."""
        self._why_closed = why
        self._changed.set()

    def _check_open(self) -> None:
        if self._why_closed:
            raise SamplingWorkerError(self._why_closed)

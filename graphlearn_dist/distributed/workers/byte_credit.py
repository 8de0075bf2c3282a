"""Flow control of a loader's batches: what a server may send of them is counted in bytes, and granted by the reader."""

from __future__ import annotations

import asyncio
from bisect import insort

from ...errors import SamplingWorkerError


class ByteCredit:
    """What may be sent of one run's batches to the one who reads them. On one asyncio loop.

    Batches go in their order, so that none takes the room of one that is read before it. The next one goes when it fits
    into ``limit_bytes`` beside those that were sent and not read; whatever its size if all of these are read after it.

    Args:
        limit_bytes: most bytes of batches on their way to the reader, or with it and not read.

    Attributes:
        sent_bytes: of the batches that are.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._asked: list[int] = []  # for which batches, ascending; they were not sent
        self._sent: list[tuple[int, int]] = []  # index, bytes, ascending; as long as the reader has requests under way
        self.sent_bytes = 0
        self._waiting: dict[asyncio.Future[None], int] = {}  # for which batch each
        self._why_closed = ""

    async def enter(self, index: int) -> None:
        """Returns when no earlier batch is asked for; one batch at a time is on its way from its worker to ``send``.

        An earlier batch that is asked for later, since its request was overtaken, need not wait for the end of this
        turn: its worker has no room for later batches as long as it is there. ``leave`` is due, unless this fails.

        Raises:
            SamplingWorkerError: the run was ended meanwhile.
        """
        insort(self._asked, index)
        try:
            while self._why_closed or self._asked[0] != index:
                await self._change(index)
        except BaseException:
            self.leave(index)
            raise

    def leave(self, index: int) -> None:
        """The turn that ``enter`` gave is over."""
        self._asked.remove(index)
        if self._waiting:
            self._wake()

    async def send(self, index: int, nbytes: int) -> None:
        """Waits until a batch may be sent, and counts it; within its turn.

        Raises:
            SamplingWorkerError: the run was ended meanwhile.
        """
        while (
            self._why_closed
            or self._asked[0] != index
            or (self._sent and self._sent[0][0] <= index and self.sent_bytes + nbytes > self.limit_bytes)
        ):
            await self._change(index)
        insort(self._sent, (index, nbytes))
        self.sent_bytes += nbytes

    async def _change(self, index: int) -> None:
        """Returns when a batch may perhaps go on; raises where nothing more is sent."""
        if self._why_closed:
            raise SamplingWorkerError(self._why_closed)
        changed = asyncio.get_running_loop().create_future()
        self._waiting[changed] = index
        try:
            await changed
        finally:
            del self._waiting[changed]

    def _wake(self) -> None:
        """Lets those look again that can go on: the first batch's, all where nothing more is sent."""
        for changed, index in self._waiting.items():
            if not changed.done() and (self._why_closed or index == self._asked[0]):
                changed.set_result(None)

    def grant(self, oldest: int) -> None:
        """The reader says which batch it reads next: it has read all before."""
        while self._sent and self._sent[0][0] < oldest:
            self.sent_bytes -= self._sent.pop(0)[1]
        if self._waiting:
            self._wake()

    def close(self, why: str) -> None:
        """Nothing more is sent; who waits fails with ``why``."""
        self._why_closed = why
        self._wake()

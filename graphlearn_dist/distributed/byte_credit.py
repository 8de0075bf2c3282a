"""Flow control of a loader's batches: what a server may send of them is counted in bytes, and granted by the reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..errors import SamplingWorkerError


class ByteCredit:
    """What may be sent of one run's batches to the one who reads them. On one asyncio loop.

    Batches go in the order in which they were asked for, so that none takes the room of one that is read before it. The
    next one goes when it fits into ``limit_bytes`` beside those that were sent and not read; if there are none such,
    whatever its size.

    Args:
        limit_bytes: most bytes of batches on their way to the reader, or with it and not read.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._sent: deque[tuple[int, int]] = deque()  # index, bytes; as long as the reader has requests under way
        self._sent_bytes = 0
        self._turn = asyncio.Lock()  # whose waiters are served in order
        self._changed = asyncio.Event()
        self._why_closed = ""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Entered in the order of asking; one batch at a time is on its way from its worker to ``send``."""
        async with self._turn:
            self._check_open()
            yield

    async def send(self, index: int, nbytes: int) -> None:
        """Waits until a batch may be sent, and counts it; within its turn.

        Raises:
            SamplingWorkerError: the run was ended meanwhile.
        """
        while self._sent and self._sent_bytes + nbytes > self._limit_bytes:
            self._changed.clear()
            await self._changed.wait()
            self._check_open()
        self._sent.append((index, nbytes))
        self._sent_bytes += nbytes

    def grant(self, oldest: int) -> None:
        """The reader says which batch it reads next: it has read all before."""
        while self._sent and self._sent[0][0] < oldest:
            self._sent_bytes -= self._sent.popleft()[1]
        self._changed.set()

    def close(self, why: str) -> None:
        """Nothing more is sent; who waits fails with ``why``."""
        self._why_closed = why
        self._changed.set()

    def _check_open(self) -> None:
        if self._why_closed:
            raise SamplingWorkerError(self._why_closed)

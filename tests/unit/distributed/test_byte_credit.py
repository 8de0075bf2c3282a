"""What may be sent ahead of a reader: bytes, in order, at least one batch."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from graphlearn_dist.distributed.workers.byte_credit import ByteCredit
from graphlearn_dist.errors import SamplingWorkerError


class Sender:
    """Sends batches of these sizes, as soon as they may go; batch ``i`` has the index ``2 * i``."""

    def __init__(self, limit_bytes: int, sizes: Sequence[int]) -> None:
        self.credit = ByteCredit(limit_bytes)
        self.sent: list[int] = []
        self.tasks = [asyncio.create_task(self._send(at, nbytes)) for at, nbytes in enumerate(sizes)]

    async def _send(self, at: int, nbytes: int) -> None:
        await self.credit.enter(2 * at)
        try:
            await self.credit.send(2 * at, nbytes)
            self.sent.append(at)
        finally:
            self.credit.leave(2 * at)

    async def after(self, num_read: int) -> int:
        """How many are sent when the reader has had so many and everybody had time to act."""
        self.credit.grant(2 * num_read)
        for _ in range(4 * len(self.tasks)):
            await asyncio.sleep(0)
        assert self.sent == sorted(self.sent)
        return len(self.sent)


def run(limit_bytes: int, sizes: Sequence[int]) -> list[int]:
    """How many are sent before the first is read, and after each."""

    async def read_all() -> list[int]:
        sender = Sender(limit_bytes, sizes)
        return [await sender.after(num_read) for num_read in range(len(sizes) + 1)]

    return asyncio.run(read_all())


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([10] * 12, [10, 11, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12]),  # small ones: many
        ([60] * 4, [1, 2, 3, 4, 4]),  # large ones: one
        ([400] * 3, [1, 2, 3, 3]),  # larger than all that may come: one all the same
        ([10, 400, 10, 10], [1, 2, 4, 4, 4]),  # a large one waits for all before it, and small ones wait for it
        ([50, 50, 1], [2, 3, 3, 3]),  # to the last byte
        ([0, 0, 100, 0], [4, 4, 4, 4, 4]),
    ],
)
def test_what_goes_ahead_of_the_reader(sizes: list[int], expected: list[int]) -> None:
    assert run(100, sizes) == expected


def test_never_more_than_granted_and_never_stuck() -> None:
    sizes = [(37 * number) % 120 + 1 for number in range(60)]
    for limit_bytes in (1, 64, 121, 500):
        ahead = run(limit_bytes, sizes)
        for num_read, num_sent in enumerate(ahead[:-1]):
            nbytes = sum(sizes[num_read:num_sent])
            assert num_sent > num_read
            assert nbytes <= limit_bytes or num_sent == num_read + 1
            assert num_sent == len(sizes) or nbytes + sizes[num_sent] > limit_bytes  # nor less than it could
        assert all(a <= b for a, b in itertools.pairwise(ahead))


def test_who_gives_up_lets_the_others_pass() -> None:
    async def cancel_some() -> None:
        sender = Sender(100, [80, 80, 30, 10])
        assert await sender.after(0) == 1
        for task in sender.tasks[1:3]:  # one has its turn and waits for credit, one waits for its turn
            task.cancel()
        await asyncio.gather(*sender.tasks, return_exceptions=True)
        assert sender.sent == [0, 3]

    asyncio.run(cancel_some())


def test_a_request_that_was_overtaken() -> None:
    """The worker gives a later batch only when the earlier one was taken; who reads it first gets it first."""

    async def overtake() -> None:
        credit, sent = ByteCredit(100), []
        is_there = {index: asyncio.Event() for index in (2, 4, 6)}

        async def fetch(index: int) -> None:
            await credit.enter(index)
            try:
                await is_there[index].wait()
                await credit.send(index, 60)
                sent.append(index)
            finally:
                credit.leave(index)

        async def all_had_time() -> list[int]:
            for _ in range(20):
                await asyncio.sleep(0)
            return sent

        tasks = [asyncio.create_task(fetch(4))]
        assert await all_had_time() == []
        tasks.append(asyncio.create_task(fetch(2)))
        is_there[2].set()
        assert await all_had_time() == [2]
        is_there[4].set()
        assert await all_had_time() == [2]  # there is no credit for it
        credit.grant(4)
        assert await all_had_time() == [2, 4]
        tasks.append(asyncio.create_task(fetch(6)))
        is_there[6].set()
        credit.grant(6)
        assert await all_had_time() == [2, 4, 6]
        tasks.append(asyncio.create_task(fetch(4)))  # overtaken by one that was sent: it goes beside it
        await asyncio.gather(*tasks)
        assert sent == [2, 4, 6, 4]

    asyncio.run(asyncio.wait_for(overtake(), 20))


def test_the_end_of_a_run_fails_who_waits() -> None:
    async def close_it() -> None:
        sender = Sender(100, [80, 80, 80])
        assert await sender.after(0) == 1
        sender.credit.close("server_0: run 2 has begun")
        for task in sender.tasks[1:]:
            with pytest.raises(SamplingWorkerError, match="server_0: run 2 has begun"):
                await task

    asyncio.run(close_it())

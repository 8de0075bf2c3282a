"""Coroutines that run at once, and are called off together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from graphlearn_dist.utils.coroutines import gather_all


class Slow:
    """Waits until it is cancelled, and then for what it is told to; counts cancellations.

    Args:
        lets_go: set when its clean-up may end.
    """

    def __init__(self, lets_go: asyncio.Event) -> None:
        self.lets_go = lets_go
        self.cleans = asyncio.Event()
        self.cancellations = 0
        self.has_ended = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancellations += 1
            self.cleans.set()
            try:
                await self.lets_go.wait()
            except asyncio.CancelledError:
                self.cancellations += 1
                raise
            raise
        finally:
            self.has_ended = True


async def fail() -> None:
    raise ValueError("the first")


async def give(number: int) -> int:
    await asyncio.sleep(0)
    return number


def test_what_all_give_in_their_order() -> None:
    async def both() -> tuple[list[int], list[int]]:
        return await gather_all(map(give, range(3))), await gather_all([])

    assert asyncio.run(both()) == ([0, 1, 2], [])


@pytest.mark.parametrize("is_cancelled_too", [False, True])
def test_a_failure_cancels_the_others_once_and_is_raised_when_they_have_ended(is_cancelled_too: bool) -> None:
    """A cancellation that comes meanwhile, as by a limit of time, does not take its place, nor disturbs their end."""

    async def main() -> list[Slow]:
        lets_go = asyncio.Event()
        slow = [Slow(lets_go), Slow(lets_go)]
        waiting: asyncio.Task[Any] = asyncio.create_task(gather_all([slow[0].run(), fail(), slow[1].run()]))
        await asyncio.gather(*(one.cleans.wait() for one in slow))
        if is_cancelled_too:
            waiting.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        assert not waiting.done()
        lets_go.set()
        with pytest.raises(ValueError, match="the first"):
            await waiting
        return slow

    assert [(one.cancellations, one.has_ended) for one in asyncio.run(main())] == [(1, True), (1, True)]


def test_a_cancellation_reaches_all_once() -> None:
    async def main() -> list[Slow]:
        lets_go = asyncio.Event()
        slow = [Slow(lets_go), Slow(asyncio.Event())]
        slow[1].lets_go.set()  # the other one ends at once
        waiting: asyncio.Task[Any] = asyncio.create_task(gather_all(one.run() for one in slow))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(*(one.cleans.wait() for one in slow))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        lets_go.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return slow

    assert [(one.cancellations, one.has_ended) for one in asyncio.run(main())] == [(1, True), (1, True)]

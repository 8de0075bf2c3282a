"""Coroutines that are waited for, and called off."""

from __future__ import annotations

import asyncio

import pytest

from graphlearn_dist.utils.coroutines import within


async def _give(value: int) -> int:
    return value


async def _fail() -> int:
    raise ValueError("failed")


async def _wait_for_ever(ends: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)  # it takes a while to end
        ends.append("ended")


def test_what_is_there_in_time_is_given() -> None:
    assert asyncio.run(within(_give(3), 60.0)) == 3
    assert asyncio.run(within(_give(3), None)) == 3
    with pytest.raises(ValueError, match="failed"):
        asyncio.run(within(_fail(), 60.0))


def test_what_takes_too_long_has_ended_before_that_is_told() -> None:
    ends: list[str] = []
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(within(_wait_for_ever(ends), 0.0))
    assert ends == ["ended"]


def test_what_fails_while_it_is_called_off_says_so() -> None:
    async def fail_late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("failed late")

    with pytest.raises(ValueError, match="failed late"):
        asyncio.run(within(fail_late(), 0.0))


def test_who_is_cancelled_ends_what_it_waits_for() -> None:
    ends: list[str] = []

    async def cancel() -> None:
        waiting = asyncio.create_task(within(_wait_for_ever(ends), None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancel())
    assert ends == ["ended"]


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_a_cancellation_is_not_forgotten_where_the_result_is_there(timeout_s: float | None) -> None:
    async def cancel() -> bool:
        result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(within(result, timeout_s))
        await asyncio.sleep(0)  # it waits
        result.set_result(1)
        waiting.cancel()  # in the same turn
        await asyncio.wait((waiting,))
        return waiting.cancelled()

    assert asyncio.run(cancel())
